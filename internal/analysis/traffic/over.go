package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// A Requester sends requests on one connection, which it opens with the first one.
type Requester interface {
	http.RoundTripper
	io.Closer
}

// Downloads returns the handler of a Server's downloads, for a server of another protocol.
func Downloads() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /bytes/{n}", serveBytes)
	mux.HandleFunc("GET /cbr", SendCBR)
	return mux
}

// fetchOver fetches the URL by Over.
func (o FetchOptions) fetchOver(ctx context.Context) (Report, error) {
	var over Requester
	r, err := o.series(ctx, max(o.Objects, 1), func(ctx context.Context, m *meter) (end time.Duration, err error) {
		if over != nil && o.NewConnections {
			err, over = over.Close(), nil
		}
		if over == nil {
			over = o.Over()
		}
		if err != nil {
			return m.now(), err
		}
		return o.get(ctx, m, over.RoundTrip)
	})
	if o.Objects == 0 {
		r.Objects = nil
	}
	return r, errors.Join(err, over.Close())
}

// body counts what arrives of a response. It returns the time of the last byte, or of the error
// that ended it.
func (m *meter) body(from io.Reader, limit time.Duration) (end time.Duration, err error) {
	buffer := make([]byte, readBuffer)
	for {
		n, err := from.Read(buffer)
		at := m.count(n, limit)
		if n > 0 {
			end = at
		}
		switch {
		case limit > 0 && at >= limit:
			return at, errLimit
		case errors.Is(err, io.EOF):
			return end, nil
		case err != nil:
			return at, err
		}
	}
}

// checkOver validates the options of a fetch by Over.
func (o FetchOptions) checkOver(u *url.URL) error {
	switch {
	case u.Scheme != "https" || u.Hostname() == "":
		return errors.New("want a URL like https://server/bytes/100MB")
	case o.Upload || o.Datagram != 0 || o.Congestion != "" || o.Address.IsValid() || o.Source.IsValid() || o.Transport == MPTCP:
		return fmt.Errorf("only downloads have no connection of %s or %s", TCP, MPTCP)
	}
	return nil
}
