package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/epe/asbr"
	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/epe/flows"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// browser starts Chromium without a window. Errors that the page logs, and what it throws, fail the
// test.
func browser(t *testing.T) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(programs.Need(t, "chromium")), chromedp.UserDataDir(t.TempDir()), chromedp.NoSandbox, chromedp.DisableGPU)
	// The browser outlives the test until Cleanup.
	ctx, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	ctx, end := chromedp.NewContext(ctx)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Error(err)
		}
		end()
	})
	err := chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			t.Errorf("the page throws: %+v", e.ExceptionDetails)
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.ConsoleAPICalledTypeError {
				t.Errorf("the page logs an error: %+v", e.Args)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return ctx
}

func run(t *testing.T, ctx context.Context, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

func evaluate[T any](t *testing.T, ctx context.Context, expression string) T {
	t.Helper()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// waitFor waits until an expression is true in the page.
func waitFor(t *testing.T, ctx context.Context, expression string) {
	t.Helper()
	if _, err := chromedp.Run(ctx, chromedp.Poll[bool](expression, chromedp.WithPollingTimeout(20*time.Second))); err != nil {
		t.Fatalf("%s: %v; the page reads:\n%s", expression, err, evaluate[string](t, ctx, "document.body.innerText"))
	}
}

func contains(id, text string) string {
	return fmt.Sprintf("document.getElementById(%q).textContent.includes(%q)", id, text)
}

// fits expects the page to fit windows of several widths, in light and dark, and keeps pictures of
// that in the directory TABANE_SCREENSHOTS.
func fits(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	for _, width := range []int64{1400, 390, 320} {
		for scheme, ink := range map[string]string{"light": "rgb(26, 26, 26)", "dark": "rgb(232, 232, 232)"} {
			run(t, ctx, chromedp.EmulateViewport(width, 1000), func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
				_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
					Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
				})
				return chromedp.Void{}, err
			})
			// The page is drawn again once a second; text in drawings can be read then.
			waitFor(t, ctx, fmt.Sprintf("innerWidth === %d && document.documentElement.scrollWidth <= innerWidth && getComputedStyle(document.body).color === %q", width, ink))
			waitFor(t, ctx, `[...document.querySelectorAll("svg text")].map((e) => e.getBoundingClientRect().height).every((height) => height === 0 || height >= 10)`)
			if dir := os.Getenv("TABANE_SCREENSHOTS"); dir != "" {
				picture, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(fmt.Sprintf("%s/%s-%d-%s.png", dir, name, width, scheme), picture, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

func TestPageInChromium(t *testing.T) {
	const hostile = `<img src=x onerror="document.title='owned'">`
	broken := asbr.Status{
		Role: "asbr", Status: health.Status{Ready: true, Degraded: true, Reason: "session with " + hostile + " is down"},
		Peers: []asbr.PeerStatus{{Name: hostile, SID: netip.MustParseAddr("fc00:1:1::")}},
	}
	var mu sync.Mutex
	a := answers{edgeAt: healthy(), asbrAt: broken}
	d := New(Options{
		Daemons: []Daemon{{Name: "edge", At: edgeAt}, {Name: "asbr", At: asbrAt}},
		Ask: func(ctx context.Context, at netip.AddrPort, path string) ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasPrefix(path, "/routes") {
				return []byte(`{"destination":"2001:db8::1/128","epe_routes":[{"peer":"a","used":true,"reason":"only path"}]}`), nil
			}
			return a.ask(ctx, at, path)
		},
	})
	ctx := browser(t)
	go func() { _ = d.Run(ctx) }() // ends with the browser
	server := httptest.NewServer(d.Handler())
	defer server.Close()

	run(t, ctx, chromedp.EmulateViewport(1400, 1000), chromedp.Navigate(server.URL))
	waitFor(t, ctx, contains("verdict", "degraded"))
	for range 3 {
		_ = d.Count(&flows.Snapshot{Elapsed: time.Second, Flows: []*flows.Flow{flow(true, "[2001:db8::a]:80", "fc00:1:1::", 4_000_000)}})
	}
	waitFor(t, ctx, contains("problems", hostile)) // as text
	waitFor(t, ctx, contains("rates", "32 Mbit/s"))
	waitFor(t, ctx, contains("subflows", "[2001:db8:c::1]:40000"))
	waitFor(t, ctx, contains("topology", "7 routes"))
	waitFor(t, ctx, contains("events", "answers, ready"))
	run(t, ctx, chromedp.SendKeys(chromedp.CSS("#routes input"), "2001:db8::1\n"))
	waitFor(t, ctx, contains("routes", "only path"))

	fits(t, ctx, "dashboard")

	mu.Lock()
	a[edgeAt] = nil
	mu.Unlock()
	waitFor(t, ctx, contains("problems", "edge does not answer"))
	server.Close()
	waitFor(t, ctx, contains("verdict", "what is shown is old"))
	if evaluate[string](t, ctx, "document.title") == "owned" {
		t.Error("text of a daemon ran as markup")
	}
}

// TestGatewayInChromium: a gateway's lines are shown with what they carry, and why one does not.
func TestGatewayInChromium(t *testing.T) {
	var mu sync.Mutex
	report := gateway.Status{
		Role: "gateway", Status: health.Status{Ready: true, Degraded: true, Reason: `path "lte" to peer "hq" is dead`},
		Peers: []gateway.PeerStatus{{Name: "hq", Mode: "tunnel", Up: true, Seconds: 90, Encryption: "AES-256-GCM"}},
		Paths: []gateway.PathStatus{
			{Peer: "hq", Path: "fiber", Up: true, State: "up", RTT: 8.25, Loss: 0.004},
			{Peer: "hq", Path: "dsl", Up: true, State: "up", Resting: "more delay than it gains", RTT: 31},
			{Peer: "hq", Path: "lte", Line: "lte", State: "dead", Reason: "<b>no answer</b>"},
		},
		Lines: []gateway.Line{{Name: "lte", Quota: "81 % of 20GB, until 2026-12-01"}},
	}
	d := New(Options{
		Daemons: []Daemon{{Name: "gateway", At: edgeAt}},
		Ask: func(ctx context.Context, at netip.AddrPort, path string) ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			report.Paths[0].SentBytes += 2_500_000
			report.Paths[0].ReceivedBytes += 250_000
			return answers{edgeAt: report}.ask(ctx, at, path)
		},
	})
	ctx := browser(t)
	go func() { _ = d.Run(ctx) }() // ends with the browser
	server := httptest.NewServer(d.Handler())
	defer server.Close()

	run(t, ctx, chromedp.EmulateViewport(1400, 1000), chromedp.Navigate(server.URL))
	for id, text := range map[string]string{"lines": "Mbit/s", "topology": "resting", "daemons": "AES-256-GCM"} {
		waitFor(t, ctx, contains(id, text))
	}
	for _, text := range []string{"8.3 ms", "0.40 %", "more delay than it gains", "dead", "<b>no answer</b>", "MB", "81 % of 20GB"} {
		waitFor(t, ctx, contains("lines", text))
	}
	waitFor(t, ctx, `document.getElementById("rates").hidden`)
	if text := evaluate[string](t, ctx, "document.body.innerText"); strings.Contains(text, "undefined") || strings.Contains(text, "Nothing was measured") {
		t.Errorf("the page reads:\n%s", text)
	}
	fits(t, ctx, "gateway")
}

// TestLinksInChromium: egress links are shown with what they carry and can carry, as servers and
// border routers report it.
func TestLinksInChromium(t *testing.T) {
	const hostile = `<img src=x onerror="document.title='owned'">`
	report := healthy()
	report.Links = []edge.LinkStatus{
		{Name: "transit-a at 2001:db8:1::1", Capacity: 10e9, Used: 9.5e9, Avoiding: 12, Stuck: true}, {Name: hostile, Capacity: 1e9, Used: 250e6},
	}
	router := asbr.Status{Role: "asbr", Status: health.Status{Ready: true}, Peers: []asbr.PeerStatus{
		{Name: "transit-c", Load: asbr.LoadStatus{Capacity: 400e6, Used: 364e6}}, {Name: "of no known capacity"},
	}}
	d := New(Options{Daemons: []Daemon{{Name: "edge", At: edgeAt}, {Name: "asbr", At: asbrAt}}, Ask: answers{edgeAt: report, asbrAt: router}.ask})
	ctx := browser(t)
	go func() { _ = d.Run(ctx) }() // ends with the browser
	server := httptest.NewServer(d.Handler())
	defer server.Close()

	run(t, ctx, chromedp.EmulateViewport(1400, 1000), chromedp.Navigate(server.URL))
	for _, text := range []string{"transit-a at 2001:db8:1::1", "9.50 Gbit/s", "10.0 Gbit/s", "95 %", "12", "nowhere else to go", hostile, "25 %", "transit-c", "91 %", "reported by"} {
		waitFor(t, ctx, contains("links", text))
	}
	if text := evaluate[string](t, ctx, `document.getElementById("links").innerText`); strings.Contains(text, "undefined") || strings.Contains(text, "NaN") || strings.Contains(text, "no known capacity") {
		t.Errorf("links read:\n%s", text)
	}
	for i, want := range []string{"bad 95%", "good 25%", "fair 91%"} {
		got := evaluate[string](t, ctx, fmt.Sprintf(`(l => l.className.replace("load ", "") + " " + l.firstElementChild.style.width)(document.querySelectorAll("#links .load")[%d])`, i))
		if got != want {
			t.Errorf("bar %d: %q, want %q", i, got, want)
		}
	}
	fits(t, ctx, "links")
	if title := evaluate[string](t, ctx, "document.title"); title == "owned" {
		t.Error("text of a daemon ran as markup")
	}
}

// TestNetworksInChromium: client networks are shown with their modes, what each brought, and when
// and why they changed; one alone if it is asked for.
func TestNetworksInChromium(t *testing.T) {
	const hostile = `<img src=x onerror="document.title='owned'">`
	report := healthy()
	report.Delivery = edge.DeliveryStatus{Default: "auto", Networks: 70}
	var mu sync.Mutex
	asked := map[string]bool{}
	d := New(Options{
		Daemons: []Daemon{{Name: "edge", At: edgeAt}, {Name: "asbr", At: asbrAt}},
		Ask: func(ctx context.Context, at netip.AddrPort, path string) ([]byte, error) {
			if !strings.HasPrefix(path, "/networks") {
				return answers{edgeAt: report, asbrAt: asbr.Status{Role: "asbr", Status: health.Status{Ready: true}}}.ask(ctx, at, path)
			}
			mu.Lock()
			defer mu.Unlock()
			asked[at.String()+path] = true
			n := edge.Networks{Default: "auto", Networks: 70, List: []edge.NetworkStatus{{
				Prefix: netip.MustParsePrefix("2001:db8:c::/64"), Mode: "auto: single", Through: []string{"transit-b"}, State: "in use", Seconds: 4000,
				Why: "measured +23 % against multipath", Trying: "spread",
				Modes: []edge.NetworkMode{
					{Mode: "single transit-b", Gain: 23, Uncertainty: 4, Trials: 12, Brought: belief.Brought{Bytes: 5e9, Goodput: 5.6e6, MinRTT: 12_300_000, Sent: 1000, Retransmitted: 5}},
					{Mode: "best"}, {Mode: hostile, Gain: -40, RestSeconds: 30},
				},
			}}}
			if strings.Contains(path, "within=2001") {
				n.Networks, n.List[0].Why = 1, "asked for alone"
			}
			if !strings.Contains(path, "within") {
				n.Changes = []edge.NetworkChange{{Prefix: netip.MustParsePrefix("198.51.100.0/24"), Seconds: 300, From: "multipath", To: "single transit-a", Why: "multipath made no progress"}}
			}
			return json.Marshal(n)
		},
	})
	ctx := browser(t)
	go func() { _ = d.Run(ctx) }() // ends with the browser
	server := httptest.NewServer(d.Handler())
	defer server.Close()

	run(t, ctx, chromedp.EmulateViewport(1400, 1000), chromedp.Navigate(server.URL))
	for _, text := range []string{"auto: single", "transit-b", "66 min", "measured +23 % against multipath; trying spread", "1 of 70 networks", "3 modes", "multipath made no progress", "5 min"} {
		waitFor(t, ctx, contains("networks", text))
	}
	run(t, ctx, chromedp.Click(chromedp.CSS("#networks details summary")))
	for _, text := range []string{"+23 % ± 4", "44.8 Mbit/s", "5.00 GB", "12.3 ms", "0.50 %", "rests for 30 s", hostile, "not measured"} {
		waitFor(t, ctx, contains("networks", text))
	}
	waitFor(t, ctx, `document.querySelector("#networks details").open`)
	fits(t, ctx, "networks")
	run(t, ctx, chromedp.EmulateViewport(1400, 1000), chromedp.SendKeys(chromedp.CSS("#networks input"), "2001:db8:c::1\n"))
	waitFor(t, ctx, contains("networks", "asked for alone"))
	waitFor(t, ctx, "!"+contains("networks", "multipath made no progress"))
	run(t, ctx, chromedp.SendKeys(chromedp.CSS("#networks input"), "x\n"))
	waitFor(t, ctx, contains("networks", "enter an address or a prefix"))
	if title := evaluate[string](t, ctx, "document.title"); title == "owned" {
		t.Error("text of a daemon ran as markup")
	}
	mu.Lock()
	defer mu.Unlock()
	for path := range asked {
		if !strings.HasPrefix(path, edgeAt.String()) {
			t.Errorf("asked %s, which delivers nothing", path)
		}
	}
}
