package projection

import (
	"errors"
	"io"
)

// cutter cuts JSON while it is written, in pieces of any size. It copies the bytes of what stays,
// with their spaces. It checks only the syntax that it needs.
//
// The comma, the spaces and the key before a value are written together with the value (head). So
// nothing has to be taken back if the value does not stay.
type cutter struct {
	root  *node
	out   []byte
	stack []level
	state state
	next  *node  // of the value after the key
	head  []byte // spaces and the key, which have not been written
	begin int    // of the key in head

	// The value that is copied or skipped.
	keep, quoted, escaped bool
	depth                 int
	decides               bool   // the level's node depends on the value
	deciding              []byte // the value then
}

// level is an object or a list that has been entered.
type level struct {
	node   *node
	list   bool
	filled bool // a member or an item has been written
}

type state uint8

const (
	between state = iota // before a key, an item or an end
	inKey
	afterKey
	beforeValue
	inValue
)

var errMalformed = errors.New("malformed object")

func (c *cutter) reset(out []byte, root *node) {
	*c = cutter{
		root:     root,
		out:      out,
		stack:    c.stack[:0],
		head:     c.head[:0],
		deciding: c.deciding[:0],
	}
}

func (c *cutter) write(src []byte) error {
	for i := 0; i < len(src); {
		switch b := src[i]; {
		case c.state == inValue:
			n, ended := c.scan(src[i:])
			c.copied(src[i : i+n])
			if i += n; ended {
				c.ended()
			}
			continue
		case c.state == inKey:
			n, ended := c.scan(src[i:])
			c.head = append(c.head, src[i:i+n]...)
			if i += n; ended {
				c.named()
			}
			continue
		case isSpace(b) && len(c.stack) == 0:
			c.out = append(c.out, b)
		case isSpace(b):
			c.head = append(c.head, b)
		case c.state == afterKey && b == ':':
			c.head = append(c.head, b)
			c.state = beforeValue
		default:
			taken, err := c.take(b)
			if err != nil {
				return err
			}
			if !taken {
				continue // with the same byte, in a value or a key
			}
		}
		i++
	}
	return nil
}

func isSpace(b byte) bool { return b == ' ' || b == '\n' || b == '\t' || b == '\r' }

// take takes a byte between values. It returns false if the byte begins a value or a key.
func (c *cutter) take(b byte) (taken bool, err error) {
	switch {
	case c.state == beforeValue || c.state == between && len(c.stack) == 0:
		return c.enter(b)
	case c.state != between:
		return false, errMalformed
	}
	top := &c.stack[len(c.stack)-1]
	switch {
	case b == ',':
		c.head = c.head[:0]
	case b == '}' && !top.list, b == ']' && top.list:
		c.out = append(append(c.out, c.head...), b)
		c.head, c.stack = c.head[:0], c.stack[:len(c.stack)-1]
	case top.list:
		c.next = top.node.items
		return c.enter(b)
	case b == '"':
		c.state, c.begin, c.depth, c.quoted = inKey, len(c.head), 0, false
		return false, nil
	default:
		return false, errMalformed
	}
	return true, nil
}

// named must be called at the end of a key.
func (c *cutter) named() {
	n := c.stack[len(c.stack)-1].node
	key := c.head[c.begin+1 : len(c.head)-1]
	c.state = afterKey
	c.next = n.members[string(key)]
	switch {
	case c.next != nil:
	case n.keep:
		c.next = keepNode
	default:
		c.next = dropNode
	}
	c.decides = n.branch.by != nil && string(key) == n.branch.key
}

// keepNode and dropNode are the nodes of values that no path names.
var keepNode, dropNode = &node{keep: true}, &node{}

// enter begins a value. If only parts of the value may stay, it takes the bracket and returns true.
func (c *cutter) enter(b byte) (taken bool, err error) {
	if b == ',' || b == ':' || b == '}' || b == ']' {
		return false, errMalformed
	}
	n := c.next
	if len(c.stack) == 0 {
		n = c.root
	}
	opens := b == '{' && n.members != nil || b == '[' && n.items != nil
	null := b == 'n' && (n.members != nil || n.items != nil)
	if c.keep = n.keep || opens || null; c.keep {
		if len(c.stack) > 0 {
			top := &c.stack[len(c.stack)-1]
			if top.filled {
				c.out = append(c.out, ',')
			}
			top.filled = true
		}
		c.out = append(c.out, c.head...)
	}
	c.head = c.head[:0]
	if opens {
		c.out = append(c.out, b)
		c.stack = append(c.stack, level{node: n, list: b == '['})
		c.state = between
		return true, nil
	}
	c.state, c.depth, c.quoted = inValue, 0, false
	return false, nil
}

func (c *cutter) copied(part []byte) {
	if c.keep {
		c.out = append(c.out, part...)
	}
	const longest = 64 // no kind and no type of an event is longer
	if c.decides && len(c.deciding) < longest {
		c.deciding = append(c.deciding, part...)
	}
}

// ended must be called at the end of a value.
func (c *cutter) ended() {
	c.state = between
	if !c.decides {
		return
	}
	top := &c.stack[len(c.stack)-1]
	if n := top.node.branch.by[string(c.deciding)]; n != nil {
		top.node = n
	}
	c.decides, c.deciding = false, c.deciding[:0]
}

// scan returns how many bytes of src belong to the value or key, and whether it ends there.
func (c *cutter) scan(src []byte) (n int, ended bool) {
	for n < len(src) {
		b := src[n]
		n++
		switch {
		case c.escaped:
			c.escaped = false
		case c.quoted && b == '\\':
			c.escaped = true
		case b == '"':
			if c.quoted = !c.quoted; !c.quoted && c.depth == 0 {
				return n, true
			}
		case c.quoted:
		case b == '{' || b == '[':
			c.depth++
		case (b == '}' || b == ']') && c.depth > 0:
			if c.depth--; c.depth == 0 {
				return n, true
			}
		case c.depth == 0 && (b == '}' || b == ']' || b == ',' || isSpace(b)):
			return n - 1, true // after a number or a literal
		}
	}
	return n, false
}

type reader struct {
	io.ReadCloser
	cutter cutter
	rest   []byte // of cutter.out
	err    error
}

// Reader returns an answer of upstream, cut while it arrives.
func (p *Projection) Reader(answer io.ReadCloser, s Shape) io.ReadCloser {
	r := &reader{ReadCloser: answer}
	r.cutter.reset(nil, p.shapes[s])
	return r
}

func (r *reader) Read(p []byte) (n int, err error) {
	for len(r.rest) == 0 && r.err == nil && len(p) > 0 {
		n, r.err = r.ReadCloser.Read(p)
		r.cutter.out = r.cutter.out[:0]
		if malformed := r.cutter.write(p[:n]); malformed != nil {
			r.err = malformed
		}
		if errors.Is(r.err, io.EOF) && len(r.cutter.stack) > 0 {
			r.err = io.ErrUnexpectedEOF
		}
		r.rest = r.cutter.out
	}
	if len(r.rest) > 0 {
		n = copy(p, r.rest)
		r.rest = r.rest[n:]
		return n, nil
	}
	return 0, r.err
}
