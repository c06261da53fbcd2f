package browser

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
)

//go:embed requester.js
var requesterScript string

// arrived is the function by which requesterScript reports bytes.
const arrived = "tabaneArrived"

// Requester gets URLs from a page of its own, with connections of its own. Servers have to allow
// requests of other origins (CORS). A body has as many bytes as the page has read, all zero. A
// Requester must not be used concurrently.
type Requester struct {
	browser *Browser
	page    *Page

	mu   sync.Mutex
	body *body // of the last response
}

// Requester returns a requester whose page is opened with the first request, or by Open.
func (b *Browser) Requester() *Requester { return &Requester{browser: b} }

// Open opens the page, which takes time that is otherwise part of the first request's.
func (r *Requester) Open(ctx context.Context) error {
	p, err := r.browser.Open(ctx, PageOptions{})
	if err != nil {
		return err
	}
	r.page = p
	r.browser.connection.handle(p.session, r.event)
	if err = p.call(ctx, "Runtime.addBinding", map[string]any{"name": arrived}, nil); err == nil {
		var ready bool
		err = p.evaluate(ctx, requesterScript, &ready)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open page: %w", err), r.Close())
	}
	return nil
}

// RoundTrip sends a GET request.
func (r *Requester) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	if r.page == nil {
		if err := r.Open(ctx); err != nil {
			return nil, err
		}
	}
	b := &body{requester: r, ctx: ctx, changed: make(chan struct{}, 1)}
	r.mu.Lock()
	r.body = b
	r.mu.Unlock()
	url, err := json.Marshal(request.URL.String())
	if err != nil {
		return nil, err
	}
	var got struct {
		Code  int
		Fault string
	}
	if err := r.page.evaluate(ctx, fmt.Sprintf("tabaneRequest(%s)", url), &got); err != nil {
		return nil, err
	}
	if got.Fault != "" {
		return nil, fmt.Errorf("the browser has no response: %s", got.Fault)
	}
	response := &http.Response{Status: fmt.Sprintf("%d %s", got.Code, http.StatusText(got.Code)), StatusCode: got.Code, Header: http.Header{}, Request: request}
	if got.Code != http.StatusOK {
		response.Body = http.NoBody // whose content is not known
		return response, nil
	}
	response.Body, response.ContentLength = b, -1
	page := r.page
	go func() {
		var done bool
		b.end(page.evaluate(ctx, "tabaneRead()", &done))
	}()
	return response, nil
}

// Close closes the page with its connections.
func (r *Requester) Close() error {
	if r.page == nil {
		return nil
	}
	p := r.page
	r.page = nil
	return p.Close()
}

// event handles an event of the page.
func (r *Requester) event(method string, params json.RawMessage) {
	r.mu.Lock()
	b := r.body
	r.mu.Unlock()
	switch {
	case b == nil:
	case method == "Inspector.targetCrashed":
		b.end(errors.New("the page's process crashed"))
	case method == "Runtime.bindingCalled":
		n, ok, err := decodeArrived(params)
		switch {
		case err != nil:
			b.end(err)
		case ok:
			b.add(n)
		}
	}
}

// maxPiece bounds what a page reads at once, in bytes.
const maxPiece = 1 << 30

// decodeArrived decodes the parameters of Runtime.bindingCalled. ok is false for another binding.
func decodeArrived(params []byte) (n int, ok bool, _ error) {
	var call struct {
		Name    string `json:"name"`
		Payload string `json:"payload"`
	}
	if err := json.Unmarshal(params, &call); err != nil {
		return 0, false, fmt.Errorf("decode what arrived: %w", err)
	}
	if call.Name != arrived {
		return 0, false, nil
	}
	n, err := strconv.Atoi(call.Payload)
	if err != nil || n < 0 || n > maxPiece {
		return 0, false, fmt.Errorf("decode what arrived: must be 0 to %d bytes, got %q", maxPiece, call.Payload)
	}
	return n, true, nil
}

// body is what arrives of a response.
type body struct {
	requester *Requester
	ctx       context.Context // of the request
	changed   chan struct{}

	mu     sync.Mutex
	unread int
	err    error // why nothing more arrives
}

func (b *body) add(n int) {
	b.mu.Lock()
	b.unread += n
	b.mu.Unlock()
	b.wake()
}

// end ends the body for a reason, nil at its end. The first reason counts.
func (b *body) end(reason error) {
	b.mu.Lock()
	switch {
	case b.err != nil:
	case reason == nil:
		b.err = io.EOF
	default:
		b.err = reason
	}
	b.mu.Unlock()
	b.wake()
}

func (b *body) wake() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	for {
		b.mu.Lock()
		n, err := min(len(p), b.unread), b.err
		b.unread -= n
		b.mu.Unlock()
		switch {
		case n > 0 || len(p) == 0:
			clear(p[:n])
			return n, nil
		case err != nil:
			return 0, err
		}
		select {
		case <-b.changed:
		case <-b.ctx.Done():
			return 0, context.Cause(b.ctx)
		}
	}
}

// Close closes the page if the body has not ended, as nothing else stops its transfer.
func (b *body) Close() error {
	b.mu.Lock()
	ended := errors.Is(b.err, io.EOF)
	b.mu.Unlock()
	if ended {
		return nil
	}
	b.end(http.ErrBodyReadAfterClose)
	return b.requester.Close()
}
