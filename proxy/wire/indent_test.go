package wire

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// However JSON is divided into writes, the result equals json.Indent's result for the whole JSON.
func FuzzIndenter(f *testing.F) {
	for _, seed := range []string{
		`{}`, `[]`, `[[],{},[{}]]`, `{"a":[1,2.5e3,null,true],"b":{"c":"d\"\\","é":"{[,:]}"}}`, "{\"a\" :\n[ 1 , {} ]\t}\n",
		`{"long":"` + strings.Repeat(`x\"`, 2*indentPiece) + `"}`, strings.Repeat("[", 1000) + strings.Repeat("]", 1000),
	} {
		f.Add([]byte(seed), uint16(3))
		f.Add([]byte(seed), uint16(50_000))
	}
	f.Fuzz(func(t *testing.T, plain []byte, piece uint16) {
		if !json.Valid(plain) || piece == 0 {
			t.Skip("not JSON")
		}
		var want, got bytes.Buffer
		if err := json.Indent(&want, bytes.TrimRight(plain, " \t\r\n"), "", "  "); err != nil {
			t.Skip(err)
		}
		if n := IndentedLength(plain); n != int64(want.Len()) {
			t.Errorf("%q has the length %d when it is indented, not %d", plain, want.Len(), n)
		}
		i := NewIndenter(&got)
		for rest := plain; len(rest) > 0; {
			n := min(int(piece), len(rest))
			if wrote, err := i.Write(rest[:n]); wrote != n || err != nil {
				t.Fatalf("wrote %d of %d, %v", wrote, n, err)
			}
			rest = rest[n:]
		}
		if err := i.Flush(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("%q becomes\n%s, not\n%s", plain, got.Bytes(), want.Bytes())
		}
	})
}
