package fair

import (
	"context"
	"sync"
	"time"
)

// Patience limits a read's wait for memory. After that, upstream answers.
const Patience = 2 * time.Second

// Holding is one request's part of a pool. Free gives back all of it when the request ends. So a
// function that takes memory need not give it back after an error. A nil Holding has no bound.
type Holding struct {
	of   *Pool
	user string
	mu   struct {
		sync.Mutex
		size   int64
		common *Common // nil for none
		freed  bool
	}
}

// Common is memory that several requests of a user hold together, until the last of them ends.
type Common struct {
	of   *Pool
	user string
	size int64
	mu   struct {
		sync.Mutex
		holders int
	}
}

// Holding returns what a user's request holds, at first nothing.
func (p *Pool) Holding(user string) *Holding { return &Holding{of: p, user: user} }

// Try takes size more, if there is room.
func (h *Holding) Try(size int64) bool {
	return h == nil || h.of.Try(h.user, size) && h.took(size)
}

// Take waits for size more, for Patience at most. If the request holds too much, it fails at once.
func (h *Holding) Take(ctx context.Context, size int64) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	held := h.mu.size
	h.mu.Unlock()
	if h.of.shared && held > 0 && 2*(held+size) > h.of.Capacity {
		return errNeverFits
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	if err := h.of.Take(ctx, h.user, size); err != nil {
		return err
	}
	h.took(size)
	return nil
}

func (h *Holding) took(size int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.freed {
		h.of.Give(h.user, size)
		panic("BUG: a request has ended and takes memory")
	}
	h.mu.size += size
	return true
}

// Share makes size of what the request holds common memory. The request is the first that holds it.
func (h *Holding) Share(size int64) *Common {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &Common{
		of:   h.of,
		user: h.user,
		size: size,
	}
	c.mu.holders = 1
	h.mu.size, h.mu.common = h.mu.size-size, c
	return c
}

// Join adds a request to those that hold common memory. If all others have ended, there must be
// room for it. A nil Common is none.
func (h *Holding) Join(c *Common) bool {
	if h == nil || c == nil {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.common == c {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.holders == 0 && !c.of.Try(c.user, c.size) {
		return false
	}
	c.mu.holders++
	h.mu.common = c
	return true
}

func (c *Common) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.holders--; c.mu.holders == 0 {
		c.of.Give(c.user, c.size)
	}
}

// Give gives size back before the request ends.
func (h *Holding) Give(size int64) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.size -= size
	h.of.Give(h.user, size)
}

// Free gives back everything, once.
func (h *Holding) Free() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.of.Give(h.user, h.mu.size)
	if h.mu.common != nil {
		h.mu.common.leave()
	}
	h.mu.size, h.mu.common, h.mu.freed = 0, nil, true
}
