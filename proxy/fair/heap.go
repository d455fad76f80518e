package fair

import "slices"

// heaped is a heap of flows.
type heaped struct {
	flows []*flow
	less  func(a, b *flow) bool
}

func (h *heaped) first() *flow {
	if len(h.flows) == 0 {
		return nil
	}
	return h.flows[0]
}

// Len implements heap.Interface.
func (h *heaped) Len() int { return len(h.flows) }

// Less implements heap.Interface.
func (h *heaped) Less(i, j int) bool { return h.less(h.flows[i], h.flows[j]) }

// Swap implements heap.Interface.
func (h *heaped) Swap(i, j int) {
	h.flows[i], h.flows[j] = h.flows[j], h.flows[i]
	h.flows[i].place, h.flows[j].place = i, j
}

// Push implements heap.Interface.
func (h *heaped) Push(f any) {
	f.(*flow).place = len(h.flows)
	h.flows = append(h.flows, f.(*flow))
}

// Pop implements heap.Interface.
func (h *heaped) Pop() any {
	last := len(h.flows) - 1
	f := h.flows[last]
	h.flows = slices.Delete(h.flows, last, last+1) // clears the element
	return f
}
