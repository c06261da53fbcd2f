package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/handover"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/proxy/choice"
	"github.com/tabane/tabane/internal/proxy/header"
	"github.com/tabane/tabane/internal/proxy/relay"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// patience bounds how long a test waits for what it expects.
const patience = 10 * time.Second

var quiet = slog.New(slog.DiscardHandler)

// start runs a proxy until the test ends.
func start(t *testing.T, listeners ...Listener) *Proxy {
	t.Helper()
	return run(t, Options{Config: Config{Listeners: listeners}, Log: quiet})
}

func run(t *testing.T, o Options) *Proxy {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p
}

// free returns an address of this host where nothing listens.
func free(t *testing.T) string {
	t.Helper()
	l := serve(t, nil)
	_ = l.Close()
	return l.Addr().String()
}

// serve gives each connection to a function.
func serve(t *testing.T, f func(*net.TCPConn)) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(c.(*net.TCPConn))
			}()
		}
	}()
	return l
}

// echo sends back what it receives, and the end after the end. It copies, since Go keeps the pipes
// of connections that it splices.
func echo(c *net.TCPConn) { _, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) }

// end returns the error with which a connection to an address ends.
func end(address string) error {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, err = io.ReadAll(c)
	return err
}

func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

func forward(t *testing.T, at, upstream string) Listener {
	return Listener{Listen: listen(t, at), Upstream: to(t, upstream)}
}

// settle waits until a condition holds.
func settle(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// TestRelay: data of all sizes arrives whole in both directions, and so does the end of each, over
// TCP and MPTCP.
func TestRelay(t *testing.T) {
	server := serve(t, echo).Addr().String()
	for _, scheme := range []string{"tcp", "mptcp"} {
		at := free(t)
		p := start(t, forward(t, "tcp://"+at, scheme+"://"+server))
		for _, size := range []int{0, 1, 1000, 16 << 10, 1 << 20, 20 << 20} {
			data := make([]byte, size)
			r := rand.NewChaCha8([32]byte{byte(size)})
			_, _ = r.Read(data) // it does not fail
			c := dial(t, at)
			go func() {
				_, _ = c.Write(data) // the reader notices
				_ = c.CloseWrite()
			}()
			got, err := io.ReadAll(c)
			if err != nil || sha256.Sum256(got) != sha256.Sum256(data) {
				t.Errorf("%s: of %d bytes %d come back, %v", scheme, size, len(got), err)
			}
		}
		settle(t, "connections stay", func() bool { return p.engine.Open() == 0 })
		l := p.Status().(Status).Listeners[0]
		if l.ToTarget != l.ToClient || l.ToClient < 21<<20 || l.Reset != 0 || l.Accepted != 6 {
			t.Errorf("%s: listener %+v", scheme, l)
		}
	}
}

// TestFallback: a destination without MPTCP is connected by TCP, and is known from then on.
func TestFallback(t *testing.T) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	plain, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	go func() {
		for {
			c, err := plain.Accept()
			if err != nil {
				return
			}
			go func() { echo(c.(*net.TCPConn)); _ = c.Close() }()
		}
	}()
	at := free(t)
	p := start(t, forward(t, "tcp://"+at, "mptcp://"+plain.Addr().String()))
	for range 2 {
		c := dial(t, at)
		fmt.Fprint(c, "x")
		_ = c.CloseWrite()
		if b, err := io.ReadAll(c); string(b) != "x" {
			t.Errorf("got %q, %v", b, err)
		}
	}
	s := p.Status().(Status)
	if s.Transports != (transports{TCP: 1, Fallback: 1}) || len(s.Fallbacks) != 1 || s.Fallbacks[0].Destination.String() != plain.Addr().String() {
		t.Errorf("transports %+v, fallbacks %+v", s.Transports, s.Fallbacks)
	}
}

// TestHalfClose: after the client's end the server still sends.
func TestHalfClose(t *testing.T) {
	server := serve(t, func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		fmt.Fprintf(c, "%d bytes", len(b))
	})
	at := free(t)
	start(t, forward(t, "tcp://"+at, "tcp://"+server.Addr().String()))
	c := dial(t, at)
	fmt.Fprint(c, "1234567")
	_ = c.CloseWrite()
	if b, err := io.ReadAll(c); string(b) != "7 bytes" {
		t.Errorf("got %q, %v", b, err)
	}
}

// TestReset: a reset of one side reaches the other, also of a server that does not exist.
func TestReset(t *testing.T) {
	reset := func(c *net.TCPConn) {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	isReset := func(err error) bool { return errors.Is(err, syscall.ECONNRESET) }
	at, none := free(t), free(t)
	ended := make(chan error, 1)
	server := serve(t, func(c *net.TCPConn) {
		one := make([]byte, 1)
		switch _, _ = c.Read(one); one[0] {
		case 's':
			reset(c)
		default:
			_ = c.SetDeadline(time.Now().Add(patience))
			_, err := c.Read(make([]byte, 1))
			ended <- err
		}
	})
	p := start(t, forward(t, "tcp://"+at, "tcp://"+server.Addr().String()), forward(t, "tcp://"+none, "tcp://"+free(t)))
	c := dial(t, at)
	fmt.Fprint(c, "s")
	if _, err := io.ReadAll(c); !isReset(err) {
		t.Errorf("the server's reset: the client gets %v", err)
	}
	c = dial(t, at)
	fmt.Fprint(c, "c")
	settle(t, "no connection", func() bool { return p.Status().(Status).Listeners[0].ToTarget == 2 })
	reset(c)
	if err := <-ended; !isReset(err) {
		t.Errorf("the client's reset: the server gets %v", err)
	}
	if err := end(none); !isReset(err) {
		t.Errorf("a server that refuses: the client gets %v", err)
	}
	settle(t, "connections stay", func() bool { return p.engine.Open() == 0 })
}

// TestSlowReader: a client that does not read stops the server, costs a bounded part of its data,
// and gets all of it in the end, from TCP and from MPTCP.
func TestSlowReader(t *testing.T) {
	for _, scheme := range []string{"tcp", "mptcp"} {
		t.Run(scheme, func(t *testing.T) { testSlowReader(t, scheme) })
	}
}

func testSlowReader(t *testing.T, scheme string) {
	const size = 64 << 20
	server := serve(t, func(c *net.TCPConn) { _, _ = io.CopyN(c, zeros{}, size) })
	at := free(t)
	p := start(t, forward(t, "tcp://"+at, scheme+"://"+server.Addr().String()))
	c := dial(t, at)
	last, same := uint64(0), 0
	settle(t, "the server is not stopped", func() bool {
		now := p.Status().(Status).Listeners[0].ToClient
		if same++; now != last || now == 0 {
			last, same = now, 0
		}
		return same > 20
	})
	if last >= size || p.engine.Pipes() > 4 {
		t.Errorf("%d bytes are on the way, in %d pipes", last, p.engine.Pipes())
	}
	if n, err := io.Copy(io.Discard, c); n != size || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// socks returns a SOCKS5 greeting and request, followed by data.
func socks(name string, port uint16, data string) []byte {
	b := append([]byte{5, 1, 0, 5, 1, 0, 3, byte(len(name))}, name...)
	return append(binary.BigEndian.AppendUint16(b, port), data...)
}

// TestRequests: SOCKS5 and CONNECT on one port, with data that follows at once; faults are
// answered.
func TestRequests(t *testing.T) {
	server := netip.MustParseAddrPort(serve(t, echo).Addr().String())
	at := free(t)
	self := netip.MustParseAddrPort(at)
	p := run(t, Options{
		Config: Config{Listeners: []Listener{forward(t, "socks5://"+at, "mptcp")}}, Log: quiet,
		lookup: func(_ context.Context, _, host string) ([]netip.Addr, error) {
			switch host {
			case "server.test":
				return []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.1")}, nil
			case "loop.test":
				return []netip.Addr{self.Addr()}, nil
			}
			return nil, errors.New("no such host")
		},
	})
	for name, tt := range map[string]struct {
		sent string
		want string // what comes back, or its beginning
	}{
		"socks":             {string(socks("server.test", server.Port(), "data")), "\x05\x00\x05\x00\x00\x01"},
		"connect":           {fmt.Sprintf("CONNECT server.test:%d HTTP/1.1\r\n\r\ndata", server.Port()), "HTTP/1.1 200 Connection established\r\n\r\ndata"},
		"loop":              {string(socks("loop.test", self.Port(), "")), "\x05\x00\x05\x02"},
		"loop by address":   {string(socks("127.0.0.1", self.Port(), "")), "\x05\x00\x05\x02"},
		"nowhere":           {string(socks("0.0.0.0", self.Port(), "")), "\x05\x00\x05\x02"},
		"no such host":      {string(socks("none.test", 80, "")), "\x05\x00\x05\x04"},
		"refused":           {string(socks("127.0.0.1", netip.MustParseAddrPort(free(t)).Port(), "")), "\x05\x00\x05\x05"},
		"UDP":               {"\x05\x01\x00\x05\x03\x00\x01\x7f\x00\x00\x01\x00\x50", "\x05\x00\x05\x07"},
		"password":          {"\x05\x01\x02", "\x05\xff"},
		"GET":               {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 405 Method Not Allowed\r\nAllow: CONNECT\r\n"},
		"endless header":    {"CONNECT server.test:80 HTTP/1.1\r\n" + strings.Repeat("a: b\r\n", 2000), "HTTP/1.1 400 "},
		"connect to no one": {"CONNECT none.test:80 HTTP/1.1\r\n\r\n", "HTTP/1.1 502 "},
	} {
		c := dial(t, at)
		fmt.Fprint(c, tt.sent)
		_ = c.CloseWrite()
		got, err := io.ReadAll(c)
		if !bytes.HasPrefix(got, []byte(tt.want)) || name == "socks" && !bytes.HasSuffix(got, []byte("data")) {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, tt.want)
		}
	}
	if _, err := io.ReadAll(func() *net.TCPConn { c := dial(t, at); fmt.Fprint(c, "\x16\x03\x01"); return c }()); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("garbage: %v", err)
	}
	settle(t, "connections stay", func() bool { return p.engine.Open() == 0 })
}

// TestProxyProtocol: the address of the client passes two proxies, of which the second sends it on
// in the other version.
func TestProxyProtocol(t *testing.T) {
	got := make(chan header.Header, 1)
	server := serve(t, func(c *net.TCPConn) {
		b, _ := bufio.NewReader(c).ReadBytes('!')
		h, n, err := header.Decode(b)
		if err != nil || string(b[n:]) != "data!" {
			t.Errorf("the server gets %q, %v", b, err)
		}
		got <- h
	})
	first, second := free(t), free(t)
	one := forward(t, "tcp://"+first, "tcp://"+second)
	one.ProxyProtocol = HeaderVersion(header.V2)
	two := forward(t, "tcp://"+second, "tcp://"+server.Addr().String())
	two.AcceptProxyProtocol, two.ProxyProtocol = true, HeaderVersion(header.V1)
	start(t, one)
	p := start(t, two)
	c := dial(t, first)
	fmt.Fprint(c, "data!")
	h := <-got
	if h.Source.String() != c.LocalAddr().String() || h.Destination.String() != first {
		t.Errorf("the server learns %v, of a client %v that connected to %v", h, c.LocalAddr(), first)
	}
	c = dial(t, second)
	fmt.Fprint(c, "GET / HTTP/1.1\r\n\r\n")
	if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a client without a header gets %v", err)
	}
	settle(t, "the malformed header is not counted", func() bool { return p.Status().(Status).Listeners[0].Malformed == 1 })
}

// TestDestinationInHeader: a listener without an upstream's host connects to where the header says.
func TestDestinationInHeader(t *testing.T) {
	at := free(t)
	l := forward(t, "tcp://"+at, "tcp")
	l.AcceptProxyProtocol = true
	start(t, l)
	c := dial(t, at)
	to := netip.MustParseAddrPort(serve(t, echo).Addr().String())
	_, _ = c.Write(header.Header{Source: netip.MustParseAddrPort("127.0.0.1:7"), Destination: to}.Append(nil, header.V2)) // pingPong notices
	pingPong(t, c)
	for _, b := range [][]byte{header.Header{}.Append(nil, header.V1), header.Header{Source: to, Destination: netip.MustParseAddrPort(at)}.Append(nil, header.V1)} {
		c := dial(t, at)
		_, _ = c.Write(b) // reading notices
		if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%q: %v", b, err)
		}
	}
}

// TestAllow: a client outside of the prefixes is reset.
func TestAllow(t *testing.T) {
	at := free(t)
	l := forward(t, "tcp://"+at, "tcp://"+serve(t, echo).Addr().String())
	l.Allow = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	p := start(t, l)
	if err := end(at); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client gets %v", err)
	}
	if n := p.Status().(Status).Listeners[0].Denied; n != 1 {
		t.Errorf("%d are denied", n)
	}
}

// TestUpstreams: connections are spread, and go on when one upstream fails, which the status says.
func TestUpstreams(t *testing.T) {
	name := func(text string) net.Listener {
		return serve(t, func(c *net.TCPConn) {
			fmt.Fprint(c, text)
			_, _ = io.Copy(io.Discard, c)
		})
	}
	a, b := name("a"), name("b")
	at := free(t)
	l := Listener{Listen: listen(t, "tcp://"+at), Upstreams: []Upstream{to(t, "tcp://"+a.Addr().String()), to(t, "tcp://"+b.Addr().String())}}
	p := start(t, l)
	answers := map[string]int{}
	ask := func() {
		t.Helper()
		one := make([]byte, 1)
		if _, err := io.ReadFull(dial(t, at), one); err != nil {
			t.Fatal(err)
		}
		answers[string(one)]++
	}
	for range 4 {
		ask()
	}
	if answers["a"] != 2 || answers["b"] != 2 {
		t.Errorf("answers %v", answers)
	}
	_ = a.Close()
	for range 6 {
		ask()
	}
	if answers["b"] != 8 {
		t.Errorf("answers %v after a has ended", answers)
	}
	s := p.Status().(Status)
	if s.Upstreams[0].Up || !s.Upstreams[1].Up || !s.Ready || !s.Degraded || s.Upstreams[0].LastError == "" {
		t.Errorf("status %+v", s)
	}
}

// TestReload: listeners come and go, connections stay, and a bad configuration changes nothing.
func TestReload(t *testing.T) {
	server := serve(t, echo).Addr().String()
	first, second := free(t), free(t)
	p := start(t, forward(t, "tcp://"+first, "tcp://"+server))
	c := dial(t, first)
	pingPong(t, c)
	changed := forward(t, "tcp://"+first, "tcp://"+server)
	changed.Idle = time.Minute
	for _, listeners := range [][]Listener{{changed, forward(t, "tcp://"+second, "tcp://"+server)}, {forward(t, "tcp://"+second, "tcp://"+server)}} {
		lines, err := p.Reload(Config{Listeners: listeners})
		if err != nil || len(lines) == 0 {
			t.Fatal(lines, err)
		}
		pingPong(t, c)
		for _, l := range listeners {
			pingPong(t, dial(t, l.Listen.Address.String()))
		}
	}
	if _, err := net.Dial("tcp", first); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the removed listener: %v", err)
	}
	taken := serve(t, echo).Addr().String()
	if _, err := p.Reload(Config{Listeners: []Listener{forward(t, "tcp://"+first, "tcp://"+server), forward(t, "tcp://"+taken, "tcp://"+server)}}); err == nil {
		t.Error("an address in use is accepted")
	}
	pingPong(t, dial(t, second))
	if _, err := net.Dial("tcp", first); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a rejected reload has opened a listener: %v", err)
	}
}

// TestCongestion: MPTCP connections in both directions have the configured congestion control, also
// one that a reload has set, and an unknown one is refused.
func TestCongestion(t *testing.T) {
	server := serve(t, echo).Addr().String()
	config := Config{Congestion: "reno", Listeners: []Listener{forward(t, "mptcp://"+free(t), "mptcp://"+server)}}
	p := run(t, Options{Config: config, Log: quiet})
	for _, want := range []string{"reno", "cubic", ""} {
		config.Congestion = want
		if _, err := p.Reload(config); err != nil {
			t.Fatal(err)
		}
		if want == "" {
			want, _ = relay.Congestion("")
		}
		c := dial(t, config.Listeners[0].Listen.Address.String())
		pingPong(t, c)
		for _, end := range []string{c.LocalAddr().String(), server} { // what the proxy is connected to
			if got := controlTo(t, end); got != want {
				t.Errorf("the connection to %s has %s, want %s", end, got, want)
			}
		}
		_ = c.Close()
		settle(t, "the connection stays", func() bool { return p.Status().(Status).Connections.Open == 0 })
	}
	config.Congestion = "no_such_control"
	if _, err := p.Reload(config); err == nil {
		t.Error("an unknown congestion control is accepted")
	}
	if _, err := New(Options{Config: config, Log: quiet}); err == nil {
		t.Error("a proxy starts with an unknown congestion control")
	}
}

// controlTo returns the congestion control of the socket of this process that is connected to an
// address.
func controlTo(t *testing.T, peer string) string {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		fd, err := strconv.Atoi(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		other, err := unix.Getpeername(fd)
		four, ok := other.(*unix.SockaddrInet4)
		if err != nil || !ok || netip.AddrPortFrom(netip.AddrFrom4(four.Addr), uint16(four.Port)).String() != peer {
			continue
		}
		name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	t.Fatalf("no socket is connected to %s", peer)
	return ""
}

// TestReusePort: with reuse_port, also one that a reload has set, several proxies share the
// connections to an address; without, the second is refused it.
func TestReusePort(t *testing.T) {
	server := serve(t, echo).Addr().String()
	for _, scheme := range []string{"tcp", "mptcp"} {
		l := forward(t, scheme+"://"+free(t), "tcp://"+server)
		at := l.Listen.Address.String()
		one := start(t, l)
		shared := Config{Listeners: []Listener{l}}
		shared.Listeners[0].ReusePort = true
		if _, err := New(Options{Config: shared, Log: quiet}); !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatalf("%s: the second proxy at an address of one that does not share it: %v", scheme, err)
		}
		if _, err := one.Reload(shared); err != nil {
			t.Fatal(err)
		}
		two := start(t, shared.Listeners[0])
		accepted := func(p *Proxy) uint64 { return p.Status().(Status).Listeners[0].Accepted }
		for range 1000 { // the kernel decides by a hash of the addresses and ports
			c := dial(t, at)
			pingPong(t, c)
			_ = c.Close()
			if accepted(one) > 0 && accepted(two) > 0 {
				break
			}
		}
		if accepted(one) == 0 || accepted(two) == 0 {
			t.Errorf("%s: %d and %d connections", scheme, accepted(one), accepted(two))
		}
	}
}

func pingPong(t *testing.T, c *net.TCPConn) {
	t.Helper()
	fmt.Fprint(c, "ping")
	b := make([]byte, 4)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "ping" {
		t.Fatalf("got %q, %v", b, err)
	}
}

// TestReplace: another proxy with the sockets takes over. Connections of the first go on in it, and
// it ends with the last of them; new ones are the second's, also those that were waiting.
func TestReplace(t *testing.T) {
	at := free(t)
	l := forward(t, "tcp://"+at, "tcp://"+serve(t, echo).Addr().String())
	first, err := New(Options{Config: Config{Listeners: []Listener{l}}, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- first.Run(t.Context()) }()
	old := dial(t, at)
	pingPong(t, old)
	fds, err := first.Sockets()
	if err != nil {
		t.Fatal(err)
	}
	inherited, err := copies(fds)
	if err != nil {
		t.Fatal(err)
	}
	second, err := New(Options{Config: Config{Listeners: []Listener{l}}, Inherited: inherited, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- second.Run(ctx) }()
	first.Replaced()
	for range 20 {
		c := dial(t, at)
		pingPong(t, c)
		_ = c.Close()
	}
	settle(t, "the second has no connection", func() bool { return second.Status().(Status).Listeners[0].Accepted > 0 })
	pingPong(t, old)
	select {
	case err := <-done:
		t.Fatal("the first ended before its connection:", err)
	default:
	}
	_ = old.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the first does not end")
	}
}

// TestReplacedUnlocks: a replaced process leaves the network namespace to others while its
// connections go on.
func TestReplacedUnlocks(t *testing.T) {
	at := free(t)
	p := start(t, forward(t, "tcp://"+at, "tcp://"+serve(t, echo).Addr().String()))
	c := dial(t, at)
	pingPong(t, c)
	p.mu.Lock()
	err := p.lockNamespace(&handover.Sockets{})
	p.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	p.Replaced()
	settle(t, "the network namespace stays locked", func() bool {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: lockName})
		if err == nil {
			_ = l.Close()
		}
		return err == nil
	})
	pingPong(t, c)
	_ = c.Close()
}

// TestStop: a clean stop refuses new connections, lets running ones end in their time, and resets
// those that do not.
func TestStop(t *testing.T) {
	server := serve(t, echo).Addr().String()
	for name, test := range map[string]struct {
		finish time.Duration
		resets bool
	}{"they end": {time.Hour, false}, "they do not": {50 * time.Millisecond, true}} {
		t.Run(name, func(t *testing.T) {
			at := free(t)
			config := Config{Listeners: []Listener{forward(t, "tcp://"+at, "tcp://"+server)}, Finish: test.finish}
			p, err := New(Options{Config: config, Log: quiet})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- p.Run(ctx) }()
			c := dial(t, at)
			pingPong(t, c)
			cancel()
			settle(t, "new connections are not refused", func() bool {
				n, err := net.Dial("tcp", at)
				if err == nil {
					_ = n.Close()
				}
				return errors.Is(err, syscall.ECONNREFUSED)
			})
			if test.resets {
				if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the connection ends with %v", err)
				}
			} else {
				pingPong(t, c)
				if _, err := p.Reload(config); err == nil {
					t.Error("a reload of a proxy that stops succeeds")
				}
				_ = c.Close()
			}
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Error("the proxy does not end")
			}
		})
	}
}

// TestLimit: at the limit accepting pauses, which is said, and goes on when a connection ends.
func TestLimit(t *testing.T) {
	at := free(t)
	l := forward(t, "tcp://"+at, "tcp://"+serve(t, echo).Addr().String())
	p, err := New(Options{Config: Config{Listeners: []Listener{l}, Finish: time.Millisecond}, most: 2, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() { cancel(); <-done }()
	one, two := dial(t, at), dial(t, at)
	pingPong(t, one)
	pingPong(t, two)
	three := dial(t, at)
	fmt.Fprint(three, "ping")
	settle(t, "accepting does not pause", func() bool {
		s := p.Status().(Status)
		return s.Connections.Paused && s.Degraded && strings.Contains(s.Reason, "accepting pauses")
	})
	_ = one.Close()
	b := make([]byte, 4)
	if _, err := io.ReadFull(three, b); err != nil {
		t.Error(err)
	}
}

// TestHTTP: a client of the standard library uses the proxy.
func TestHTTP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	at := free(t)
	start(t, forward(t, "mptcp://"+at, "tcp://"+l.Addr().String()))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range 20 {
		resp, err := client.Get("http://" + at)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(b) != "ok" {
			t.Fatalf("got %q, %v", b, err)
		}
	}
}

var _ relay.Router = (*router)(nil)

// TestWithoutMultipath: a proxy that cannot use MPTCP says so, unless it does not need it.
func TestWithoutMultipath(t *testing.T) {
	name := netnstest.Enter(t)
	netnstest.IP(t, name, "link set lo up")
	for _, test := range []struct {
		enabled, listen, upstream string
		lacks                     bool
	}{
		{"1", "tcp://127.0.0.1:1", "mptcp://127.0.0.1:2", false},
		{"0", "tcp://127.0.0.1:1", "mptcp://127.0.0.1:2", true},
		{"0", "mptcp://127.0.0.1:1", "tcp://127.0.0.1:2", true},
		{"0", "tcp://127.0.0.1:1", "tcp://127.0.0.1:2", false},
	} {
		if err := os.WriteFile("/proc/sys/net/mptcp/enabled", []byte(test.enabled), 0); err != nil {
			t.Fatal(err)
		}
		p, err := New(Options{Config: Config{Listeners: []Listener{forward(t, test.listen, test.upstream)}}, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		if s := p.Status().(Status); !s.Ready || s.Degraded != test.lacks || test.lacks != strings.Contains(s.Reason, "MPTCP is switched off") {
			t.Errorf("%+v: degraded %v: %q", test, s.Degraded, s.Reason)
		}
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}
}

// TestLateAddress: an address of a name that does not answer costs one connection the delay of the
// next attempt, and not each that follows for a while.
func TestLateAddress(t *testing.T) {
	silent, err := relay.OpenSocket(relay.SocketOptions{At: netip.MustParseAddrPort("127.0.0.2:0")})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(silent)
	dead := relay.LocalAddress(silent)
	if err := unix.Listen(silent, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 { // they fill its queue, and further SYNs are dropped
		c, err := net.DialTimeout("tcp", dead.String(), time.Second)
		if err == nil {
			defer c.Close()
		}
	}
	alive, err := net.Listen("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), dead.Port()).String())
	if err != nil {
		t.Skip(err) // another program has the port
	}
	defer alive.Close()
	go func() {
		for {
			c, err := alive.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("x"))
			_ = c.Close()
		}
	}()
	at, both := free(t), []netip.Addr{dead.Addr(), netip.MustParseAddr("127.0.0.3")}
	p := run(t, Options{
		Config: Config{Listeners: []Listener{forward(t, "tcp://"+at, fmt.Sprintf("tcp://two.test:%d", dead.Port()))}}, Log: quiet,
		lookup: func(context.Context, string, string) ([]netip.Addr, error) {
			return both, nil
		},
	})
	for range 3 {
		if got, err := io.ReadAll(dial(t, at)); err != nil || string(got) != "x" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	p.router.mu.Lock()
	defer p.router.mu.Unlock()
	now := p.router.ordered(both, dead.Port(), time.Now())
	later := p.router.ordered(both, dead.Port(), time.Now().Add(choice.Late))
	if len(now) != 2 || now[1] != dead.Addr() || later[0] != dead.Addr() {
		t.Errorf("the order is %v, and later %v", now, later)
	}
}
