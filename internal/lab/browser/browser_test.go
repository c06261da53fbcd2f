package browser

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/study/qoe"
	"github.com/tabane/tabane/internal/testkit/accessor"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// patience bounds each step of a test. The machine may be busy.
const patience = 60 * time.Second

// shop is a page with all that a task needs: a first view of an image, a field, a button and a
// list.
const shop = `<!doctype html><html lang="en"><title>Shop</title><link rel="icon" href="data:,">
<style>body {margin: 0} #list {height: 100px; overflow: auto} #list div {height: 1000px}</style>
<h1>Shop</h1><input id="query"><button id="buy">Buy</button><div id="list"><div>items</div></div><img id="image">
<script>
const root = document.documentElement, image = document.getElementById('image');
let step = -1;
const next = () => requestAnimationFrame(() => { root.dataset.step = String(++step); });
image.onload = next;
image.src = '/image.svg';
document.getElementById('query').addEventListener('change', next);
document.getElementById('list').addEventListener('scroll', next, {once: true});
document.getElementById('buy').addEventListener('click', () => {
	root.dataset.chosen = document.getElementById('query').value;
	next();
});
</script></html>`

func server(t *testing.T) (_ *httptest.Server, trust string) {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, shop) })
	mux.HandleFunc("/image.svg", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "image/svg+xml")
		w.Header().Set("Cache-Control", "max-age=3600")
		fmt.Fprint(w, `<svg xmlns="http://www.w3.org/2000/svg" width="900" height="600"><rect width="900" height="600" fill="#246"/></svg>`)
	})
	mux.HandleFunc("/fault", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `<!doctype html><script>document.documentElement.dataset.fault = 'tile 3: 500'</script>`)
	})
	mux.HandleFunc("/hang", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `<!doctype html><script>for (;;) {}</script>`)
	})
	mux.HandleFunc("/dialog", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `<!doctype html><script>alert('hello')</script>`)
	})
	s := httptest.NewUnstartedServer(mux)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	sum := sha256.Sum256(s.Certificate().RawSubjectPublicKeyInfo)
	return s, base64.StdEncoding.EncodeToString(sum[:])
}

// stranger is a server with a certificate that no browser trusts.
func stranger(t *testing.T) *httptest.Server {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestBrowser runs all that needs a browser in one.
func TestBrowser(t *testing.T) {
	site, trust := server(t)
	dir := t.TempDir()
	stale := filepath.Join(dir, profilePrefix+"stale")
	sockets := filepath.Join(dir, "org.chromium.Chromium.stale")
	if err := errors.Join(os.Mkdir(stale, 0o700), os.Mkdir(sockets, 0o700), os.WriteFile(filepath.Join(sockets, singleton), nil, 0o600),
		os.Symlink(filepath.Join(sockets, singleton), filepath.Join(stale, singleton))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b := must[*Browser](t)(Start(ctx, Options{Program: programs.Need(t, "chromium"), Trust: []string{trust}, TempDir: dir}))
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if left := must[[]os.DirEntry](t)(os.ReadDir(dir)); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		if n := must[int](t)(running(b.cmd.Process.Pid)); n > 0 {
			t.Errorf("%d processes left behind", n)
		}
	})
	for _, left := range []string{stale, sockets} {
		if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("stale profile: %v", err)
		}
	}
	if !strings.Contains(b.Version(), "Chrome") {
		t.Errorf("version: %q", b.Version())
	}

	open := func(t *testing.T, o PageOptions) *Page {
		p := must[*Page](t)(b.Open(ctx, o))
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		return p
	}
	do := func(t *testing.T, p *Page, step int, act func() error) Progress {
		t.Helper()
		if err := act(); err != nil {
			t.Fatal(err)
		}
		s := must[Progress](t)(p.Wait(ctx, step))
		if s.Step != step || s.Input <= 0 || s.At < s.Input {
			t.Errorf("step %d: %+v", step, s)
		}
		return s
	}
	t.Run("task", func(t *testing.T) {
		p := open(t, PageOptions{Width: 1000, Height: 800, Record: true})
		if s := must[Progress](t)(p.Navigate(ctx, site.URL)); s.Step != 0 || s.At <= 0 || s.Input != 0 {
			t.Errorf("first view: %+v", s)
		}
		m := must[Measures](t)(p.Measure(ctx))
		if !(0 < m.TTFB && m.TTFB < m.FCP && m.FCP <= m.LCP && m.TTFB < m.Load) || m.Requests != 2 || m.Bytes < int64(len(shop)) || m.Protocol != "h2" {
			t.Errorf("measures: %+v", m)
		}
		if err := p.Focus(ctx, "#query"); err != nil {
			t.Fatal(err)
		}
		if err := p.Type(ctx, "tea 茶"); err != nil {
			t.Fatal(err)
		}
		do(t, p, 1, func() error { return p.Press(ctx, "Enter") })
		do(t, p, 2, func() error { return p.Scroll(ctx, "#list", 0, 50) })
		if s := do(t, p, 3, func() error { return p.Click(ctx, "#buy") }); s.Chosen != "tea 茶" {
			t.Errorf("chosen: %q", s.Chosen)
		}
		v, err := qoe.Progress(must[[]qoe.Frame](t)(p.Frames(ctx, m)))
		if err != nil || v.First <= 0 || v.SpeedIndex < v.First-time.Millisecond || v.SpeedIndex > v.Last {
			t.Errorf("visual progress: %+v, %v", v, err)
		}
		for _, bad := range []error{p.Click(ctx, "#none"), p.Click(ctx, "title"), p.Press(ctx, "Any"), p.Type(ctx, "\xff"), p.Click(ctx, "]"), p.Focus(ctx, "h1"), p.Focus(ctx, "#none")} {
			if bad == nil {
				t.Error("no error")
			}
		}
	})
	t.Run("fresh", func(t *testing.T) {
		p := open(t, PageOptions{})
		must[Progress](t)(p.Navigate(ctx, site.URL))
		if m := must[Measures](t)(p.Measure(ctx)); m.Requests != 2 || m.Bytes < int64(len(shop))+200 {
			t.Errorf("the image came from the cache of another context: %+v", m)
		}
	})
	refused := httptest.NewServer(http.NotFoundHandler())
	refused.Close()
	t.Run("requests", func(t *testing.T) { checkRequests(ctx, t, open(t, PageOptions{Requests: true}), site.URL) })
	for _, tt := range []struct{ name, url, want string }{
		{"fault", site.URL + "/fault", "tile 3: 500"},
		{"dialog", site.URL + "/dialog", "dialog"},
		{"refused", refused.URL, "net::ERR_CONNECTION_REFUSED"},
		{"certificate", stranger(t).URL, "net::ERR_CERT_AUTHORITY_INVALID"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := open(t, PageOptions{}).Navigate(ctx, tt.url); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	t.Run("hang", func(t *testing.T) {
		p := open(t, PageOptions{})
		late := errors.New("too late")
		short, cancel := context.WithTimeoutCause(ctx, 300*time.Millisecond, late)
		defer cancel()
		if _, err := p.Navigate(short, site.URL+"/hang"); !errors.Is(err, late) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("killed", func(t *testing.T) {
		p := open(t, PageOptions{})
		if _, _, err := b.connection.send(p.session, "Page.crash", nil); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(ctx, 0); err == nil || !strings.Contains(err.Error(), "crashed") {
			t.Errorf("got %v", err)
		}
	})
}

func TestStartErrors(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		name    string
		options Options
		want    string
	}{
		{"no program", Options{Program: filepath.Join(dir, "none"), TempDir: dir}, "no such file"},
		{"another program", Options{Program: "/bin/false", TempDir: dir}, "the browser closed the connection"},
		{"what it says", Options{TempDir: dir, Program: "sh", Command: func([]string) (*exec.Cmd, error) {
			return exec.Command("sh", "-c", "echo no display >&2; exec sleep 0"), nil
		}}, "no display"},
		{"no command", Options{TempDir: dir, Program: "sh", Command: func([]string) (*exec.Cmd, error) { return nil, errors.New("no namespace") }}, "no namespace"},
		{"no directory", Options{Program: "sh", TempDir: filepath.Join(dir, "none")}, "no such file"},
	} {
		if _, err := Start(t.Context(), tt.options); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
	if left := must[[]os.DirEntry](t)(os.ReadDir(dir)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	t.Setenv("PATH", dir)
	var missing *feature.Error
	if _, err := Start(t.Context(), Options{}); !errors.As(err, &missing) || missing.Remedy == "" {
		t.Errorf("without a browser: %v", err)
	}
}

// TestSweepKeepsProfilesInUse: only those that no process holds are removed.
func TestSweepKeepsProfilesInUse(t *testing.T) {
	dir := t.TempDir()
	held := must[profile](t)(newProfile(dir))
	other := filepath.Join(dir, "other")
	for _, name := range []string{profilePrefix + "stale", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, name, "Default"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(other, filepath.Join(dir, profilePrefix+"link")); err != nil {
		t.Fatal(err)
	}
	second := must[profile](t)(newProfile(dir))
	for _, p := range []profile{held, second} {
		if _, err := os.Stat(p.dir); err != nil {
			t.Errorf("a profile in use was removed: %v", err)
		}
		if err := p.remove(); err != nil {
			t.Error(err)
		}
	}
	if left := must[[]os.DirEntry](t)(os.ReadDir(dir)); len(left) != 2 {
		t.Errorf("left: %v", left)
	}
}

func TestDecodeProgress(t *testing.T) {
	for payload, want := range map[string]Progress{
		`{"step":"2","chosen":"p7","fault":"","at":12.5,"input":3}`: {Step: 2, Chosen: "p7", At: 12500 * time.Microsecond, Input: 3 * time.Millisecond},
		`{"step":"","fault":"x","at":0,"input":0}`:                  {Step: -1, Fault: "x"},
	} {
		got, ok, err := decodeProgress(fmt.Appendf(nil, `{"name":%q,"payload":%q}`, binding, payload))
		if err != nil || !ok || got != want {
			t.Errorf("%s: got %+v, %v, %v", payload, got, ok, err)
		}
	}
	if _, ok, err := decodeProgress([]byte(`{"name":"other","payload":"x"}`)); ok || err != nil {
		t.Errorf("another binding: %v, %v", ok, err)
	}
	for _, payload := range []string{`x`, `{"step":"-1"}`, `{"step":"1e3"}`, `{"step":"99999999999"}`, `{"step":"1","at":-1}`, `{"step":"1","at":1e300}`} {
		if _, _, err := decodeProgress(fmt.Appendf(nil, `{"name":%q,"payload":%q}`, binding, payload)); err == nil {
			t.Errorf("%s: no error", payload)
		}
	}
}

// FuzzDecode: nothing that a browser sends makes a decoder panic, or gives values out of range.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"id":1,"result":{}}`))
	f.Add([]byte(`{"method":"Runtime.bindingCalled","params":{"name":"tabaneProgress","payload":"{\"step\":\"1\",\"at\":5}"}}`))
	f.Add([]byte(`{"method":"Page.screencastFrame","params":{"data":"/9j/","metadata":{"timestamp":1.7e9},"sessionId":3}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decodeMessage(data)
		if err != nil {
			m.Params = data
		} else if m.ID < 0 || m.ID == 0 && m.Method == "" {
			t.Fatalf("%+v", m)
		}
		accessor.Call(t, m)
		if p, ok, err := decodeProgress(m.Params); ok && (err != nil || p.Step < -1 || p.At < 0 || p.Input < 0) {
			t.Fatalf("%+v, %v", p, err)
		}
		if raw, _, err := decodeFrame(m.Params); err == nil {
			if raw.at < 0 {
				t.Fatalf("frame at %s", raw.at)
			}
			_, _ = decodeHistogram(raw.data)
		}
		if h, err := decodeHistogram(data); err == nil {
			for color := range h {
				n := 0
				for _, count := range h[color] {
					n += count
				}
				if n > frameSize*frameSize {
					t.Fatalf("%d pixels", n)
				}
			}
		}
	})
}
