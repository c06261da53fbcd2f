package route

import "context"

// SetReadBuffer sets the receive buffer size, so that tests can make the kernel drop answers.
func (c *Conn) SetReadBuffer(bytes int) error { return c.nl.SetReadBuffer(bytes) }

// WatchSmall is Watch with the given receive buffer size, so that tests can cause an Overrun.
func WatchSmall(ctx context.Context, bytes int, groups ...Group) (*Watcher, error) {
	return watch(ctx, bytes, nil, groups...)
}

// Entries returns the number of objects that are known.
func (r *Reconciler) Entries() int { return r.store.Len() }
