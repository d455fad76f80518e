package client

import (
	"context"
	"strconv"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// FirstBookmark returns the bookmark that ends the state of the cheapest watch within a resource's
// scope. If upstream cannot stream states, the error is apierrors.IsInvalid.
func (c *Client) FirstBookmark(
	ctx context.Context, r *object.Resource, timeoutSeconds int,
) (Event, error) {
	path, query := nothing(r)
	query.Set("watch", "true")
	query.Set("sendInitialEvents", "true")
	query.Set("resourceVersionMatch", "NotOlderThan")
	query.Set("allowWatchBookmarks", "true")
	query.Set("timeoutSeconds", strconv.Itoa(timeoutSeconds))
	resp, err := c.Send(ctx, Get{"probe", r.GVR, path, query, AcceptOf(r.Encoding)})
	if err != nil {
		return Event{}, err
	}
	defer resp.Body.Close() //nolint:errcheck // the bookmark has been read
	c.Compresses.Store(resp.Uncompressed)
	s := NewStream(resp.Body, r)
	e, err := s.Next()
	if err == nil && e.Kind == "ADDED" && r.Scope.Selects() { // the scope may be a single object
		e, err = s.Next()
	}
	switch {
	case err != nil:
		return e, Ended(err, true)
	case e.Kind == "ERROR":
		return e, EventError(e, r.Encoding)
	case e.Kind != "BOOKMARK":
		return e, object.Malformed("watch of nothing shows %s", e.Kind)
	}
	return e, nil
}
