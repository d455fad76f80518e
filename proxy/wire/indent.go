package wire

import "io"

// Indenter indents JSON while it is written, as json.Indent does with two spaces: a list of any
// length needs no room of its own. The writes together must be one valid JSON value; each may end
// anywhere in it.
type Indenter struct {
	to      io.Writer
	out     []byte // not written yet
	depth   int
	opened  bool // the last token opened an object or an array
	quoted  bool // within a string
	escaped bool // behind a backslash
}

// indentPiece is how much is collected before it is written, in bytes.
const indentPiece = 16 << 10

// NewIndenter returns one that writes to w. Flush writes the rest.
func NewIndenter(w io.Writer) *Indenter {
	return &Indenter{to: w, out: make([]byte, 0, indentPiece+indentPiece/2)}
}

// Write implements io.Writer.
func (i *Indenter) Write(p []byte) (int, error) {
	for at := 0; at < len(p); {
		if i.quoted {
			at += i.text(p[at:])
		} else {
			i.token(p[at])
			at++
		}
		if len(i.out) >= indentPiece {
			if err := i.Flush(); err != nil {
				return at, err
			}
		}
	}
	return len(p), nil
}

// text takes as much of a string as there is, up to a piece, and tells how much that was.
func (i *Indenter) text(p []byte) (n int) {
	p = p[:min(len(p), indentPiece)]
	for n < len(p) && i.quoted {
		c := p[n]
		n++
		switch {
		case i.escaped:
			i.escaped = false
		case c == '\\':
			i.escaped = true
		case c == '"':
			i.quoted = false
		}
	}
	i.out = append(i.out, p[:n]...)
	return n
}

// token takes a byte outside of strings.
func (i *Indenter) token(c byte) {
	switch c {
	case ' ', '\t', '\r', '\n':
		return
	case '}', ']':
		if !i.opened {
			i.depth--
			i.line()
		}
		i.opened = false
		i.out = append(i.out, c)
		return
	}
	if i.opened {
		i.opened = false
		i.depth++
		i.line()
	}
	i.out = append(i.out, c)
	switch c {
	case '"':
		i.quoted = true
	case '{', '[':
		i.opened = true
	case ',':
		i.line()
	case ':':
		i.out = append(i.out, ' ')
	}
}

func (i *Indenter) line() {
	i.out = append(i.out, '\n')
	for range i.depth {
		i.out = append(i.out, "  "...)
	}
}

// Flush writes what was collected.
func (i *Indenter) Flush() error {
	_, err := i.to.Write(i.out)
	i.out = i.out[:0]
	return err
}
