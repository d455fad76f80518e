package upstream

import "context"

// confirm compares the log's state with upstream's at rv or later, by the uids and
// resourceVersions of all objects. If both are the same, readers may have the cached state as of
// then. It returns whether they are the same.
func (f *Feed) confirm(ctx context.Context, rv uint64) (same bool, err error) {
	_, epoch := f.standing()
	done := f.metrics.spend("metadata")
	list, err := f.client.Metadata(ctx, f.cache.Resource(), rv)
	done()
	if err != nil {
		return false, err
	}
	err = f.write(epoch, func() error {
		same = f.cache.Confirm(list.States, list.RV)
		return nil
	})
	return same, err
}
