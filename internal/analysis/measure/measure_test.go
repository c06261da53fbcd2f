package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/accessor"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

var loopback = netip.MustParseAddr("127.0.0.1")

// serve runs a server on the loopback and returns its URL.
func serve(t *testing.T, o ServerOptions) (*Server, string) {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	s := NewServer(o)
	content, err := traffic.New(traffic.Options{Listen: []netip.AddrPort{netip.AddrPortFrom(loopback, 0)}, Also: s.Handlers(), Log: o.Log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- content.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s, "http://" + content.Addrs()[0].String()
}

func open(t *testing.T, url, key string) (*Client, Offer) {
	t.Helper()
	c, err := NewClient(url, []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	offer, err := c.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c, offer
}

func mode(t *testing.T, name string) Mode {
	t.Helper()
	m, err := ParseMode(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestTrials: each kind of load in each mode that the loopback has.
func TestTrials(t *testing.T) {
	key := "a key of the lab"
	_, url := serve(t, ServerOptions{
		Key: []byte(key), Version: "1", Kernel: "6.18", Congestion: "cubic",
		Peers: func(context.Context) []Peer { return []Peer{{"transit-b", netip.MustParseAddr("127.0.0.2")}} },
	})
	_, port, _ := strings.Cut(strings.TrimPrefix(url, "http://"), ":")
	// The peer's address has the same port.
	second, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 8)
	other := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.URL.Path:
		default:
		}
		w.WriteHeader(http.StatusTeapot)
	})}
	go func() { _ = other.Serve(second) }()
	t.Cleanup(func() { _ = other.Close() })

	c, offer := open(t, url, key)
	if offer.Kernel != "6.18" || offer.Congestion != "cubic" || offer.Limits.Bytes != DefaultBytes {
		t.Errorf("offer: %+v", offer)
	}
	for _, tt := range []struct {
		mode string
		load Load
		want int64
	}{
		{"tcp", Load{Bytes: 3 * unit.MB}, 3e6},
		{"parallel:3", Load{Bytes: 3 * unit.MB}, 3e6},
		{"tcp", Load{Bytes: 50 * unit.KB, Objects: 4}, 200e3},
		{"tcp", Load{Rate: 8 * unit.MbitPerSecond, Time: 500 * time.Millisecond}, 500e3},
		{"parallel:2", Load{Rate: 8 * unit.MbitPerSecond, Time: 500 * time.Millisecond}, 500e3},
		{"tcp", Load{Time: 300 * time.Millisecond}, -1},
	} {
		if err := c.Turn(t.Context(), 5*time.Second, nil); err != nil {
			t.Fatal(err)
		}
		got, err := c.Trial(t.Context(), mode(t, tt.mode), tt.load, nil)
		if err != nil {
			t.Errorf("%s %+v: %v", tt.mode, tt.load, err)
			continue
		}
		sum := int64(0)
		for _, n := range got.Series {
			sum += n
		}
		if tt.want >= 0 && got.Bytes != tt.want || got.Bytes != sum || got.GoodputBps <= 0 || len(got.Objects) != tt.load.Objects {
			t.Errorf("%s %+v: %+v, %d bytes in the series", tt.mode, tt.load, got, sum)
		}
		if got.Idle.Count != idlePings || got.Idle.P50 <= 0 || got.Idle.P95 < got.Idle.P50 || got.Idle.RPM <= 0 {
			t.Errorf("%s: latency %+v", tt.mode, got.Idle)
		}
	}
	if err := c.Turn(t.Context(), 5*time.Second, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Trial(t.Context(), mode(t, "single:transit-b"), Load{Bytes: 1000}, nil); err == nil || !strings.Contains(err.Error(), "418") {
		t.Errorf("the peer's address answers: %v", err)
	}
	if path := <-asked; !strings.HasSuffix(path, "/ping") {
		t.Errorf("the peer's address was asked for %q", path)
	}
}

// TestModesThatAreMissing: what the server does not have is refused, and what it has is named.
func TestModesThatAreMissing(t *testing.T) {
	offer := Offer{Peers: []Peer{{Name: "transit-a"}}, Deliveries: []string{DeliverBest, DeliverAll, "steer"}}
	for _, good := range []string{"tcp", "multipath", "multipath-best", "single:transit-a", "parallel:12", "steer"} {
		if err := offer.Check(mode(t, good)); err != nil {
			t.Error(err)
		}
	}
	for bad, want := range map[string]string{
		"spray":            `the server does not have the mode "spray"; it has tcp, multipath, multipath-best, steer, single:transit-a, parallel:N`,
		"single:transit-c": `the server does not have the mode "single:transit-c"`,
	} {
		if err := offer.Check(mode(t, bad)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if err := (Offer{}).Check(mode(t, "multipath-best")); err == nil {
		t.Error("multipath-best without a delivery")
	}
	for _, bad := range []string{"", "parallel", "parallel:0", "parallel:65", "parallel:x", "single", "single:", "single:a b", "tcp:1", "a/b", "a?b", strings.Repeat("a", 65)} {
		if m, err := ParseMode(bad); err == nil {
			t.Errorf("%q: %+v", bad, m)
		}
	}
	if err := offer.CheckPaired(mode(t, "multipath-best"), mode(t, "multipath")); err != nil {
		t.Error(err)
	}
	if err := offer.CheckPaired(mode(t, "tcp"), mode(t, "steer")); err != nil {
		t.Error(err)
	}
	for _, bad := range [][2]string{{"tcp", "multipath"}, {"tcp", "single:transit-a"}, {"tcp", "parallel:3"}, {"tcp", "spray"}} {
		if err := offer.CheckPaired(mode(t, bad[0]), mode(t, bad[1])); err == nil {
			t.Errorf("%v are paired", bad)
		}
	}
}

// TestStrangers: without the key there is no session, no turn and no content, and no answer is
// long.
func TestStrangers(t *testing.T) {
	_, url := serve(t, ServerOptions{Key: []byte("sixteen characters")})
	for key, want := range map[string]string{"": "it needs one", "another key of 16": "the key is wrong"} {
		c, err := NewClient(url, []byte(key))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Open(t.Context()); !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), want) {
			t.Errorf("key %q: %v", key, err)
		}
	}
	c, _ := open(t, url, "sixteen characters")
	// A session without a turn gets nothing.
	for _, path := range []string{c.path("bytes", "1000000"), c.path("ping"), c.path("cbr") + "?rate=1Gbit/s&duration=1h", Path + "/" + strings.Repeat("0", 32) + "/bytes/1000000"} {
		response, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		_, err = b.ReadFrom(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode < 400 || b.Len() > 200 {
			t.Errorf("%s: %s, %d bytes, %v", path, response.Status, b.Len(), err)
		}
	}
}

// TestSlowBody: without the key, a body that does not end keeps no connection.
func TestSlowBody(t *testing.T) {
	s := NewServer(ServerOptions{Key: []byte("sixteen characters")})
	s.body = 50 * time.Millisecond
	server := httptest.NewServer(s)
	defer server.Close()
	for _, path := range []string{Path, Path + "/x/deliver/y"} {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = c.Write([]byte("POST " + path + " HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"))
		var b bytes.Buffer
		if _, err := b.ReadFrom(c); err != nil {
			t.Errorf("%s: the connection stays: %q, %v", path, b.String(), err)
		}
	}
}

// TestNetworksOfClients: a client cannot take all sessions by its many addresses of IPv6.
func TestNetworksOfClients(t *testing.T) {
	s := NewServer(ServerOptions{})
	a := netip.MustParseAddr("2001:db8::1")
	for range maxFromAddress {
		if _, err := s.add(a); err != nil {
			t.Fatal(err)
		}
		a = a.Next()
	}
	if _, err := s.add(a); err == nil {
		t.Error("one network takes more than its share")
	}
	for _, other := range []string{"2001:db8:0:1::1", "192.0.2.1"} {
		if _, err := s.add(netip.MustParseAddr(other)); err != nil {
			t.Error(err)
		}
	}
}

// TestTurnPauses: a server that answers at once that it is not the client's turn is not asked
// without a pause.
func TestTurnPauses(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		answer(w, Turn{Ahead: 1})
	}))
	defer server.Close()
	c, err := NewClient(server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), round/2)
	defer cancel()
	if err := c.Turn(ctx, time.Second, nil); err == nil || asked > 1 {
		t.Errorf("asked %d times, %v", asked, err)
	}
}

// TestChallengeIsOfOneClient: a challenge of another address or of another time is no use.
func TestChallengeIsOfOneClient(t *testing.T) {
	key := []byte("sixteen characters")
	s := NewServer(ServerOptions{Key: key})
	now := time.Unix(1e9, 0)
	s.now = func() time.Time { return now }
	mine := s.challenge(loopback, now)
	if err := s.admit(loopback, Opening{mine, prove(key, mine)}); err != nil {
		t.Error(err)
	}
	if err := s.admit(netip.MustParseAddr("127.0.0.9"), Opening{mine, prove(key, mine)}); err == nil {
		t.Error("accepted of another address")
	}
	now = now.Add(challengeLife + time.Second)
	if err := s.admit(loopback, Opening{mine, prove(key, mine)}); err == nil {
		t.Error("accepted later")
	}
}

// TestQueue: ten clients measure one after the other, and each is served.
func TestQueue(t *testing.T) {
	s, url := serve(t, ServerOptions{})
	var (
		mu                 sync.Mutex
		running, most, all int
	)
	var clients sync.WaitGroup
	for range 10 {
		c, _ := open(t, url, "")
		clients.Go(func() {
			if err := c.Turn(t.Context(), 5*time.Second, nil); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			if _, err := c.Trial(t.Context(), Mode{Name: TCP, Transport: traffic.TCP, Connections: 1}, Load{Bytes: 100 * unit.KB}, nil); err != nil {
				t.Error(err)
			}
			mu.Lock()
			running--
			all++
			mu.Unlock()
			if _, err := c.short(t.Context(), http.MethodDelete, c.path("turn"), nil); err != nil {
				t.Error(err)
			}
		})
	}
	clients.Wait()
	if most != 1 || all != 10 {
		t.Errorf("%d measured at the same time, %d in all", most, all)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue)+len(s.active) != 0 {
		t.Errorf("%d wait, %d are active", len(s.queue), len(s.active))
	}
}

// TestAbsentClients: a client that has left, in the queue or in its turn, does not keep the others
// waiting for longer than its time, and its session ends.
func TestAbsentClients(t *testing.T) {
	s := NewServer(ServerOptions{})
	now := time.Unix(1e9, 0)
	s.now = func() time.Time { return now }
	var all []*session
	for range 3 {
		id, err := s.add(loopback)
		if err != nil {
			t.Fatal(err)
		}
		one := s.sessions[id]
		one.time = 10 * time.Second
		all = append(all, one)
		s.take(one)
	}
	if got, _, _ := s.take(all[2]); got.Granted || got.Ahead != 2 || got.Wait != 20*time.Second {
		t.Errorf("got %+v", got)
	}
	now = now.Add(11 * time.Second)
	all[2].used = now // it asks again, the second does not
	if got, _, _ := s.take(all[2]); got.Granted {
		t.Error("the second has lost its place early")
	}
	now = now.Add(idlePlace)
	all[2].used = now
	if got, _, _ := s.take(all[2]); !got.Granted {
		t.Errorf("got %+v", got)
	}
	now = now.Add(idleSession + time.Second)
	s.expire()
	if len(s.sessions) != 0 || len(s.active) != 0 {
		t.Errorf("%d sessions, %d turns", len(s.sessions), len(s.active))
	}
}

// TestLimits: a trial gets no more than its bytes, the server sends no more than its total, and an
// address has no more than its share of the sessions.
func TestLimits(t *testing.T) {
	s, url := serve(t, ServerOptions{Limits: Limits{Bytes: unit.MB, Time: time.Second}, Total: 1500 * unit.KB})
	c, _ := open(t, url, "")
	if err := c.Turn(t.Context(), 2*time.Second, nil); err == nil || !strings.Contains(err.Error(), "up to 1s") {
		t.Errorf("a turn of 2 s: %v", err)
	}
	tcp := mode(t, "tcp")
	for range 2 {
		if err := c.Turn(t.Context(), time.Second, nil); err != nil {
			t.Fatal(err)
		}
		_, _ = c.Trial(t.Context(), tcp, Load{Bytes: unit.MB}, nil)
		_, _ = c.Trial(t.Context(), tcp, Load{Bytes: unit.MB}, nil)
	}
	if s.sent != 1500e3 {
		t.Errorf("sent %d", s.sent)
	}
	other, err := NewClient(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Open(t.Context()); err == nil || !strings.Contains(err.Error(), "that it may send") {
		t.Errorf("beyond the total: %v", err)
	}
	many := NewServer(ServerOptions{})
	for i := range maxFromAddress + 1 {
		if _, err := many.add(loopback); (err != nil) != (i == maxFromAddress) {
			t.Errorf("session %d: %v", i, err)
		}
	}
}

// TestOtherServers: what is not a server of tabane is named.
func TestOtherServers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		handle http.HandlerFunc
		want   error
	}{
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://login.example/", http.StatusFound)
		}, ErrPortal},
		{"page", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<!doctype html><html>Welcome")) }, ErrPortal},
		{"511", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNetworkAuthenticationRequired)
		}, ErrPortal},
		{"other", func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }, ErrProtocol},
		{"json", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"a":1}`)) }, ErrProtocol},
	} {
		server := httptest.NewServer(tt.handle)
		c, err := NewClient(server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Open(t.Context()); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
		server.Close()
	}
	if err := versionError(2); !strings.Contains(err.Error(), "version 2") {
		t.Error(err)
	}
	for _, bad := range []string{"", "https://server/", "http://server/path", "http://", "ftp://server", "http://server/?a=b", "http://u@server/", "http://[::1", "%"} {
		if _, err := NewClient(bad, nil); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// switcher is a Delivery that remembers.
type switcher struct {
	mu    sync.Mutex
	names []string
}

func (s *switcher) Names() []string { return []string{DeliverBest, "steer"} }

func (s *switcher) Deliver(_ context.Context, conn net.Conn, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if conn == nil {
		return errors.New("no connection")
	}
	s.names = append(s.names, name)
	return nil
}

// TestPaired: one connection is switched between two modes, in the orders.
func TestPaired(t *testing.T) {
	d := &switcher{}
	_, url := serve(t, ServerOptions{Delivery: d, Limits: Limits{Bytes: 1000 * unit.GB, Time: DefaultTime}})
	c, offer := open(t, url, "")
	modes := [2]Mode{mode(t, "tcp"), mode(t, "steer")}
	if err := offer.CheckPaired(modes[0], modes[1]); err != nil {
		t.Fatal(err)
	}
	if err := c.Turn(t.Context(), PairedTime(1, LeastPhase), nil); err != nil {
		t.Fatal(err)
	}
	got, err := c.Paired(t.Context(), modes, [][2]int{{1, 0}}, LeastPhase)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"steer", "steer", "best", "steer", "best"}; !slices.Equal(d.names, want) {
		t.Errorf("switched to %q, want %q", d.names, want)
	}
	if len(got) != 1 || got[0][0].Bytes == 0 || got[0][1].Bytes == 0 || got[0][0].Duration > LeastPhase-settling(LeastPhase) {
		t.Errorf("got %+v", got)
	}
}

// FuzzServer: no request makes the server panic, and one without a session gets no content.
func FuzzServer(f *testing.F) {
	f.Add("GET", "/measure", []byte{})
	f.Add("POST", "/measure", []byte(`{"challenge":"AAAA","proof":"x"}`))
	f.Add("POST", "/measure/00000000000000000000000000000000/turn?time=1s", []byte{})
	f.Add("GET", "/measure/x/bytes/1GB?deliver=best", []byte{})
	f.Add("DELETE", "/measure/x/turn", []byte{})
	f.Add("GET", "/measure/x/cbr?rate=1Gbit/s&duration=1s", []byte{})
	f.Fuzz(func(t *testing.T, method, target string, body []byte) {
		r, err := http.NewRequest(method, "http://server"+target, bytes.NewReader(body))
		if err != nil || r.URL.Host != "server" {
			return
		}
		r.RemoteAddr = "192.0.2.1:4711"
		s := NewServer(ServerOptions{Key: []byte("sixteen characters"), Log: slog.New(slog.DiscardHandler)})
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if len(s.sessions) != 0 || w.Body.Len() > 1000+2*len(target) {
			t.Errorf("%d sessions, an answer of %d bytes", len(s.sessions), w.Body.Len())
		}
	})
}

// FuzzDecodeOffer: what a hostile server sends is refused, or can be used.
func FuzzDecodeOffer(f *testing.F) {
	b, err := json.Marshal(Offer{Protocol: Protocol, Session: strings.Repeat("0", 32), Peers: []Peer{{"a", loopback}}, Deliveries: []string{"best"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"tabane_measure":1,"key":true,"challenge":"A"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := decodeHello(b); err == nil && h.Protocol != Protocol {
			t.Errorf("hello %+v", h)
		}
		o, err := decodeOffer(b)
		if err != nil {
			return
		}
		accessor.Call(t, o)
		for _, name := range o.Names() {
			if m, err := ParseMode(name); err == nil && o.Check(m) != nil {
				t.Errorf("the server has %q and refuses it: %v", name, o.Check(m))
			}
		}
	})
}
