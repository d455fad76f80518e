package upstream

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/watchproxy/watchproxy/watchcache"
)

// acceptProtobufMetadata asks for no more than the metadata of a list's items, in the
// shortest of forms. Of six thousand objects that was a megabyte in some 25 ms.
const acceptProtobufMetadata = mimeProtobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// confirm compares the state of the log with upstream's at rv or later, by the
// uids and resourceVersions of all objects. If they are the same, readers may have
// it as of then. It returns whether they are.
func (f *Feed) confirm(ctx context.Context, rv uint64) (same bool, err error) {
	_, epoch := f.standing()
	list, at, err := f.client.metadata(ctx, f.cache.Resource(), rv)
	if err != nil {
		return false, err
	}
	if list.Continue != "" {
		return false, errPartial
	}
	if at < rv {
		return false, fmt.Errorf("upstream listed at %d, asked for %d", at, rv)
	}
	states := make([]watchcache.ObjectState, len(list.Items))
	for i := range list.Items {
		if states[i], err = f.stateOf(&list.Items[i]); err != nil {
			return false, err
		}
	}
	err = f.write(epoch, func() error {
		same = f.cache.Confirm(states, at)
		return nil
	})
	return same, err
}

func (f *Feed) stateOf(o *metav1.PartialObjectMetadata) (watchcache.ObjectState, error) {
	rv, err := watchcache.ParseResourceVersion(o.ResourceVersion)
	return watchcache.ObjectState{Key: f.cache.Resource().Key(o.Namespace, o.Name), UID: string(o.UID), ResourceVersion: rv}, err
}

// metadata lists the metadata of a collection in a state that is not older than rv.
func (c *Client) metadata(ctx context.Context, r *watchcache.Resource, rv uint64) (*metav1.PartialObjectMetadataList, uint64, error) {
	return c.metadataBy(ctx, r, url.Values{"resourceVersion": {strconv.FormatUint(rv, 10)}, "resourceVersionMatch": {"NotOlderThan"}})
}

// metadataBy lists metadata, and tells at which resourceVersion.
func (c *Client) metadataBy(ctx context.Context, r *watchcache.Resource, query url.Values) (*metav1.PartialObjectMetadataList, uint64, error) {
	resp, err := c.getAs(ctx, acceptProtobufMetadata, "metadata", r.GVR, resourcePath(r.GVR, ""), query)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, 0, fmt.Errorf("list metadata: %w", err)
	}
	var envelope runtime.Unknown
	var list metav1.PartialObjectMetadataList
	if err := readEnvelope(body, &envelope); err != nil {
		return nil, 0, err
	}
	if err := list.Unmarshal(envelope.Raw); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", watchcache.ErrMalformedObject, err)
	}
	at, err := watchcache.ParseResourceVersion(list.ResourceVersion)
	return &list, at, err
}
