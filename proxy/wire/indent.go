package wire

import "io"

// Indenter indents JSON while it is written, like json.Indent with two spaces. So a long list needs
// no memory for an indented copy. All writes together must be one valid JSON value. A write may end
// anywhere in this value.
type Indenter struct {
	to      io.Writer
	out     []byte // not written yet
	depth   int
	opened  bool // the last token opened an object or an array
	quoted  bool // within a string
	escaped bool // the last byte was a backslash
}

// indentPiece is the number of bytes that are collected for a write.
const indentPiece = 16 << 10

// NewIndenter returns an Indenter. Flush writes the remaining bytes.
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

// text copies the rest of a string, at most indentPiece bytes, and returns the number of copied
// bytes.
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

// token copies a byte outside strings.
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

// IndentedLength returns the length of a JSON body after Indent. Each line begins with twice its depth
// in spaces, so a deeply nested object of a few KiB may need a GiB.
func IndentedLength(body []byte) (n int64) {
	depth, opened := int64(0), false
	line := func() { n += 1 + 2*depth }
	for at := 0; at < len(body); at++ {
		c := body[at]
		switch c {
		case ' ', '\t', '\r', '\n':
			continue
		case '}', ']':
			if !opened {
				depth--
				line()
			}
			opened = false
			n++
			continue
		}
		if opened {
			opened = false
			depth++
			line()
		}
		n++
		switch c {
		case '"':
			length := stringLength(body[at:])
			at += length - 1
			n += int64(length) - 1
		case '{', '[':
			opened = true
		case ',':
			line()
		case ':':
			n++
		}
	}
	return n
}

// stringLength returns the length of the JSON string at the beginning of p.
func stringLength(p []byte) int {
	for at := 1; at < len(p); at++ {
		switch p[at] {
		case '\\':
			at++
		case '"':
			return at + 1
		}
	}
	return len(p)
}

// Flush writes the collected bytes.
func (i *Indenter) Flush() error {
	_, err := i.to.Write(i.out)
	i.out = i.out[:0]
	return err
}
