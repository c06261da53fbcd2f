package browser

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"
)

//go:embed page.js
var pageScript string

// binding is the function by which pageScript reports progress.
const binding = "tabaneProgress"

// PageOptions are the parameters of Open.
type PageOptions struct {
	// Width and Height are those of the viewport in pixels; by default 1280 and 800.
	Width, Height int
	// Language is the value of Accept-Language; by default the browser's.
	Language string
	// Record records frames, which takes CPU time, Requests the requests (HAR), which takes less.
	Record, Requests bool
}

// Progress is what a page reports by attributes of its root element.
type Progress struct {
	// Step is data-step: 0 when the first view is complete, and one more after each interaction.
	// It is -1 before.
	Step int
	// Chosen is data-chosen, what the user has chosen; Fault is data-fault, why the page failed.
	Chosen, Fault string
	// At is when the attributes changed, and Input the time of the last mouse or keyboard event
	// before, both since the start of the navigation.
	At, Input time.Duration
}

// Measures are those of a page since the start of its navigation.
type Measures struct {
	// TTFB is the time to the first byte of the response, FCP and LCP the first and the largest
	// contentful paint. LCP ends with the first input.
	TTFB, FCP, LCP time.Duration
	// ContentLoaded and Load are the ends of the events.
	ContentLoaded, Load time.Duration
	// CLS is the cumulative layout shift, by session windows.
	CLS float64
	// LongTasks is the sum of the tasks of 50 ms and more on the main thread.
	LongTasks time.Duration
	// Bytes are those of all responses with their headers, Requests their number, with that of the
	// page itself.
	Bytes, Requests int64
	// Protocol is that of the page itself, such as http/1.1 or h2.
	Protocol string
	// origin is the start of the navigation, since the epoch.
	origin time.Duration
}

// Page is a page in a browser context of its own. Its methods must not be called concurrently.
type Page struct {
	browser         *Browser
	context, target string
	session         string
	options         PageOptions

	mu       sync.Mutex
	progress []Progress
	failed   error
	changed  chan struct{} // closed and replaced with each change
	frames   []rawFrame
	recorded int // bytes of frames
	requests requests
}

// Open opens an empty page in a fresh browser context.
func (b *Browser) Open(ctx context.Context, o PageOptions) (_ *Page, err error) {
	if o.Width == 0 && o.Height == 0 {
		o.Width, o.Height = 1280, 800
	}
	p := &Page{browser: b, options: o, changed: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open page: %w", err), p.Close())
		}
	}()
	var created struct {
		Context string `json:"browserContextId"`
		Target  string `json:"targetId"`
		Session string `json:"sessionId"`
	}
	c := b.connection
	if err := c.call(ctx, "", "Target.createBrowserContext", map[string]any{"disposeOnDetach": true}, &created); err != nil {
		return nil, err
	}
	p.context = created.Context
	if err := c.call(ctx, "", "Target.createTarget", map[string]any{"url": "about:blank", "browserContextId": p.context}, &created); err != nil {
		return nil, err
	}
	p.target = created.Target
	if err := c.call(ctx, "", "Target.attachToTarget", map[string]any{"targetId": p.target, "flatten": true}, &created); err != nil {
		return nil, err
	}
	p.session = created.Session
	c.handle(p.session, p.event)
	for _, command := range []struct {
		method string
		params any
	}{
		{"Page.enable", nil},
		{"Runtime.enable", nil},
		{"Inspector.enable", nil},
		{"Emulation.setDeviceMetricsOverride", map[string]any{"width": o.Width, "height": o.Height, "deviceScaleFactor": 1, "mobile": false}},
		{"Emulation.setFocusEmulationEnabled", map[string]any{"enabled": true}},
		{"Runtime.addBinding", map[string]any{"name": binding}},
		{"Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": pageScript}},
	} {
		if err := p.call(ctx, command.method, command.params, nil); err != nil {
			return nil, err
		}
	}
	if o.Requests || o.Language != "" {
		if err := p.call(ctx, "Network.enable", nil, nil); err != nil {
			return nil, err
		}
	}
	if o.Language != "" {
		headers := map[string]any{"headers": map[string]string{"Accept-Language": o.Language}}
		if err := p.call(ctx, "Network.setExtraHTTPHeaders", headers, nil); err != nil {
			return nil, err
		}
	}
	if o.Record {
		return p, p.record(ctx)
	}
	return p, nil
}

// call sends a command to the page.
func (p *Page) call(ctx context.Context, method string, params, result any) error {
	return p.browser.connection.call(ctx, p.session, method, params, result)
}

// evaluate evaluates an expression in the page and decodes its value, that of a promise when it is
// fulfilled.
func (p *Page) evaluate(ctx context.Context, expression string, result any) error {
	var reply struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	params := map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}
	if err := p.call(ctx, "Runtime.evaluate", params, &reply); err != nil {
		return err
	}
	if reply.Exception != nil {
		return fmt.Errorf("the page's script failed: %s", reply.Exception.Exception.Description)
	}
	if err := json.Unmarshal(reply.Result.Value, result); err != nil {
		return fmt.Errorf("decode the page's value: %w", err)
	}
	return nil
}

// Navigate opens a URL and returns once the page has reported its first view.
func (p *Page) Navigate(ctx context.Context, url string) (Progress, error) {
	var reply struct {
		Error string `json:"errorText"`
	}
	if err := p.call(ctx, "Page.navigate", map[string]any{"url": url}, &reply); err != nil {
		return Progress{}, fmt.Errorf("navigate to %q: %w", url, err)
	}
	if reply.Error != "" {
		return Progress{}, fmt.Errorf("navigate to %q: %s", url, reply.Error)
	}
	return p.Wait(ctx, 0)
}

// Wait returns once the page has reported a step, with the first report of it or of a later one. It
// is an error if the page reports a fault first, or fails otherwise.
func (p *Page) Wait(ctx context.Context, step int) (Progress, error) {
	for {
		p.mu.Lock()
		all, failed, changed := p.progress, p.failed, p.changed
		p.mu.Unlock()
		for _, s := range all {
			switch {
			case s.Fault != "":
				return s, fmt.Errorf("wait for step %d: the page reported %q", step, s.Fault)
			case s.Step >= step:
				return s, nil
			}
		}
		if failed != nil {
			return Progress{}, fmt.Errorf("wait for step %d: %w", step, failed)
		}
		select {
		case <-changed:
		case <-p.browser.connection.done:
			return Progress{}, fmt.Errorf("wait for step %d: %w", step, p.browser.connection.ended())
		case <-ctx.Done():
			return Progress{}, fmt.Errorf("wait for step %d: %w", step, context.Cause(ctx))
		}
	}
}

// Last returns the page's last report.
func (p *Page) Last() Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.progress) == 0 {
		return Progress{Step: -1}
	}
	return p.progress[len(p.progress)-1]
}

// paintPatience bounds the time until the browser reports the paints of a view.
const paintPatience = 2 * time.Second

// Measure returns the measures up to now. What the browser has not reported is an error.
func (p *Page) Measure(ctx context.Context) (Measures, error) {
	var v struct {
		TTFB, FCP, LCP, Load, ContentLoaded, LongTasks, CLS, Origin float64
		Bytes, Requests                                             int64
		Protocol                                                    string
	}
	err := p.evaluate(ctx, fmt.Sprintf("tabaneMeasures(%d)", paintPatience.Milliseconds()), &v)
	if err != nil {
		return Measures{}, fmt.Errorf("measure page: %w", err)
	}
	if v.FCP <= 0 || v.LCP <= 0 || v.Load <= 0 {
		return Measures{}, fmt.Errorf("measure page: the browser has reported no %s after %s", map[bool]string{true: "load event", false: "contentful paint"}[v.Load <= 0], paintPatience)
	}
	return Measures{
		TTFB: milliseconds(v.TTFB), FCP: milliseconds(v.FCP), LCP: milliseconds(v.LCP), ContentLoaded: milliseconds(v.ContentLoaded), Load: milliseconds(v.Load),
		LongTasks: milliseconds(v.LongTasks), CLS: v.CLS, Bytes: v.Bytes, Requests: v.Requests, Protocol: v.Protocol, origin: milliseconds(v.Origin),
	}, nil
}

// Close closes the page with its context and its connections.
func (p *Page) Close() error {
	c := p.browser.connection
	if p.session != "" {
		c.handle(p.session, nil)
	}
	if p.context == "" {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), killTimeout, fmt.Errorf("no reply after %s", killTimeout))
	defer cancel()
	if err := c.call(ctx, "", "Target.disposeBrowserContext", map[string]any{"browserContextId": p.context}, nil); err != nil {
		return fmt.Errorf("close page: %w", err)
	}
	return nil
}

// maxProgress bounds the reports of a page.
const maxProgress = 10000

// event handles an event of the page.
func (p *Page) event(method string, params json.RawMessage) {
	switch method {
	case "Runtime.bindingCalled":
		progress, ok, err := decodeProgress(params)
		if ok || err != nil {
			p.report(progress, err)
		}
	case "Inspector.targetCrashed":
		p.report(Progress{}, errors.New("the page's process crashed"))
	case "Page.javascriptDialogOpening":
		p.report(Progress{}, errors.New("the page opened a dialog"))
	case "Page.screencastFrame":
		p.frame(params)
	default:
		if !p.options.Requests {
			return
		}
		p.mu.Lock()
		err := p.requests.event(method, params)
		p.mu.Unlock()
		if err != nil {
			p.report(Progress{}, err)
		}
	}
}

// report adds a report of the page, or an error.
func (p *Page) report(progress Progress, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.failed != nil:
	case err != nil:
		p.failed = err
	case len(p.progress) >= maxProgress:
		p.failed = fmt.Errorf("the page reported more than %d steps", maxProgress)
	default:
		p.progress = append(p.progress, progress)
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// decodeProgress decodes the parameters of Runtime.bindingCalled. ok is false for another binding.
func decodeProgress(params []byte) (_ Progress, ok bool, _ error) {
	var call struct {
		Name    string `json:"name"`
		Payload string `json:"payload"`
	}
	if err := json.Unmarshal(params, &call); err != nil {
		return Progress{}, false, fmt.Errorf("decode progress: %w", err)
	}
	if call.Name != binding {
		return Progress{}, false, nil
	}
	var v struct {
		Step, Chosen, Fault string
		At, Input           float64
	}
	if err := json.Unmarshal([]byte(call.Payload), &v); err != nil {
		return Progress{}, false, fmt.Errorf("decode progress: %w", err)
	}
	step := -1
	if v.Step != "" {
		n, err := strconv.ParseUint(v.Step, 10, 31)
		if err != nil {
			return Progress{}, false, fmt.Errorf("decode progress: data-step must be a number >= 0, got %q", v.Step)
		}
		step = int(n)
	}
	if !(v.At >= 0 && v.At < maxTime) || !(v.Input >= 0 && v.Input < maxTime) {
		return Progress{}, false, fmt.Errorf("decode progress: times must be 0 to %g ms, got %v and %v", maxTime, v.At, v.Input)
	}
	return Progress{Step: step, Chosen: v.Chosen, Fault: v.Fault, At: milliseconds(v.At), Input: milliseconds(v.Input)}, true, nil
}

// maxTime bounds the time of a report since the navigation, in ms: a day.
const maxTime = 86_400_000.0

// milliseconds converts a DOMHighResTimeStamp.
func milliseconds(ms float64) time.Duration {
	return time.Duration(math.Round(ms * float64(time.Millisecond)))
}
