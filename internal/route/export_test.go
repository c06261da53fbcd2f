package route

import "context"

// SetReadBuffer lets tests lose answers of the kernel.
func (c *Conn) SetReadBuffer(bytes int) error { return c.nl.SetReadBuffer(bytes) }

// WatchSmall is Watch with a buffer that overruns soon.
func WatchSmall(ctx context.Context, bytes int, groups ...Group) (*Watcher, error) {
	return watch(ctx, bytes, nil, groups...)
}
