package admin

import (
	"embed"
	"net/http"
)

// page is the status page: it shows /status and needs nothing but these files.
//
//go:embed page
var page embed.FS

// servePage serves the page at the root. It may load only what it consists of, run no other script, and be part of no
// other page.
func servePage(mux *http.ServeMux) {
	const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	for path, file := range map[string]string{"/{$}": "index.html", "/page.css": "page.css", "/page.js": "page.js"} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("Content-Security-Policy", policy)
			h.Set("Referrer-Policy", "no-referrer")
			h.Set("Cache-Control", "no-cache")
			http.ServeFileFS(w, r, page, "page/"+file)
		})
	}
}
