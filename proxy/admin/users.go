package admin

import (
	"encoding/json"
	"net/http"
)

// usersPath is the path of a report that names users. Names are personal data, so the path can
// never be open to everybody, and the right to /status does not include it.
const usersPath = "/users"

// serveUsers serves the report. The guard authorizes its readers.
func serveUsers(mux *http.ServeMux, report func() any) {
	mux.HandleFunc("GET "+usersPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(report()) // the client may have left
	})
}
