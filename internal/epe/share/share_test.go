package share

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/testkit/accessor"
	"github.com/tabane/tabane/internal/testkit/certificate"
	"github.com/tabane/tabane/internal/testkit/programs"
)

var (
	network = netip.MustParsePrefix("2001:db8:c::/64")
	other   = netip.MustParsePrefix("198.51.100.0/24")
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Options{
		"valkey://host":                      {Address: "host:6379"},
		"redis://192.0.2.1:7000/3":           {Address: "192.0.2.1:7000", Database: 3},
		"valkey://[2001:db8::1]":             {Address: "[2001:db8::1]:6379"},
		"redis://:p%40ss@host/":              {Address: "host:6379", Password: "p@ss"},
		"valkeys://edge:secret@host:6380/12": {Address: "host:6380", User: "edge", Password: "secret", Database: 12},
		"rediss://host":                      {Address: "host:6379"},
	} {
		got, err := Parse(text)
		secure := strings.HasPrefix(text, "valkeys") || strings.HasPrefix(text, "rediss")
		if err != nil || (got.TLS != nil) != secure || secure && got.TLS.ServerName != "host" {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		if got.TLS = nil; !cmp.Equal(got, want) {
			t.Errorf("%s: %s", text, cmp.Diff(want, got))
		}
	}
	for _, text := range []string{
		"", "file", "host:6379", "http://host", "valkey:host", "valkey://", "valkey://:secret@", "valkey://host:0", "valkey://host:70000", "valkey://host:x",
		"valkey://host/x", "valkey://host/-1", "valkey://host/99999999", "valkey://host?tls=1", "valkey://host#1", "valkey://secret\x00@host",
		"redis://]", "valkey://::1", "valkey://a:b:6379",
	} {
		if _, err := Parse(text); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// freePort returns a port that nothing listens on.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// server starts Redis, which speaks the protocol of Valkey, and returns its address.
func server(t testing.TB, port string, arguments ...string) (address string, stop func()) {
	t.Helper()
	program := programs.Need(t, "redis-server")
	address = "127.0.0.1:" + port
	c := exec.Command(program, append([]string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", t.TempDir()}, arguments...)...)
	var log strings.Builder
	c.Stdout, c.Stderr = &log, &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		if c.ProcessState == nil {
			_ = c.Process.Kill()
			_ = c.Wait() // killed
		}
	}
	t.Cleanup(stop)
	for range 100 {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			return address, stop
		}
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	t.Fatalf("redis-server does not listen:\n%s", log.String())
	return "", nil
}

// record is what a server measured.
func record(p netip.Prefix, mean float32) belief.Shared {
	return belief.Shared{Version: belief.SharedVersion, Prefix: p, Measured: time.Now().Unix(), Modes: []belief.SharedMode{{Mode: "single transit-a", Mean: mean, SD: 0.05, Trials: 3}}}
}

func client(t *testing.T, o Options) *Client {
	c := New(o)
	t.Cleanup(c.Close)
	return c
}

func (c *Client) exchange(t *testing.T, x belief.Exchange) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := c.Exchange(ctx, x)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ask returns what others have of the network.
func (c *Client) ask(t *testing.T, p netip.Prefix) Result {
	t.Helper()
	return c.exchange(t, belief.Exchange{Asked: []netip.Prefix{p}})
}

func TestExchange(t *testing.T) {
	address, _ := server(t, freePort(t))
	a, b := client(t, Options{Address: address, Site: "65000", Server: "10.0.0.1"}), client(t, Options{Address: address, Site: "65000", Server: "10.0.0.2"})
	elsewhere := client(t, Options{Address: address, Site: "65001", Server: "10.0.0.3"})

	if r := a.exchange(t, belief.Exchange{}); r.Refused != nil || r.Invalid > 0 {
		t.Errorf("a store without records: %+v", r)
	}
	first, second := record(network, 0.1), record(network, 0.2)
	a.exchange(t, belief.Exchange{Measured: []belief.Shared{first, record(other, 0.3)}})
	b.exchange(t, belief.Exchange{Measured: []belief.Shared{record(network, 0.9)}})
	r := b.exchange(t, belief.Exchange{Measured: []belief.Shared{second}, Asked: []netip.Prefix{network, netip.MustParsePrefix("203.0.113.0/24")}})
	if want := map[netip.Prefix][]belief.Shared{network: {first}}; !cmp.Equal(r.Records, want, prefixes) || r.Invalid > 0 {
		t.Errorf("b read %+v, want %+v", r, want)
	}
	if got := a.ask(t, network).Records[network]; !cmp.Equal(got, []belief.Shared{second}, prefixes) {
		t.Errorf("a read %+v, want that of b alone", got)
	}
	if r := elsewhere.ask(t, network); len(r.Records) > 0 {
		t.Errorf("another site read %+v", r)
	}
	removed := belief.Shared{Version: belief.SharedVersion, Prefix: network}
	b.exchange(t, belief.Exchange{Measured: []belief.Shared{removed}})
	if r := a.ask(t, network); len(r.Records) > 0 {
		t.Errorf("after its removal: %+v", r)
	}
}

var prefixes = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// TestCrowd: of any number of servers a few have a record of a network.
func TestCrowd(t *testing.T) {
	address, _ := server(t, freePort(t))
	for i := range 60 {
		c := client(t, Options{Address: address, Site: "s", Server: fmt.Sprint("10.0.0.", i)})
		c.exchange(t, belief.Exchange{Measured: []belief.Shared{record(network, 0.1)}})
	}
	c := client(t, Options{Address: address, Site: "s", Server: "10.0.0.1"})
	if got := len(c.ask(t, network).Records[network]); got < mostServers/2 || got > mostServers {
		t.Errorf("read the records of %d servers, want at most %d", got, mostServers)
	}
	r := c.exchange(t, belief.Exchange{Measured: []belief.Shared{record(network, 0.1)}, Asked: []netip.Prefix{network}})
	if r.Refused != nil {
		t.Error(r.Refused)
	}
	length, err := c.conn.Do("HLEN", c.key(network))
	if n, _ := length.(int64); err != nil || n > mostServers+1 {
		t.Errorf("%v servers have a record, %v", length, err)
	}
	if left, err := c.conn.Do("TTL", c.key(network)); err != nil || left.(int64) < 6*24*3600 {
		t.Errorf("it is kept for %v s, %v", left, err)
	}
}

// TestGarbage: what others left in the store is ignored, and does not keep records from being
// written or read.
func TestGarbage(t *testing.T) {
	address, _ := server(t, freePort(t))
	c := client(t, Options{Address: address, Site: "s", Server: "10.0.0.1"})
	c.exchange(t, belief.Exchange{})
	text := func(s belief.Shared) []byte { b, _ := s.Encode(); return b }
	old, next, foreign := record(network, 0.1), record(network, 0.1), record(other, 5)
	old.Measured -= 8 * 24 * 3600
	next.Version++
	for name, value := range map[string]any{
		"garbage": "\x00\xff{", "large": strings.Repeat("x", belief.MaxShared+1), "version": text(next), "other network": text(foreign),
		"future": `{"v":1,"prefix":"2001:db8:c::/64","at":99999999999,"modes":[]}`,
		"old":    text(old), "valid": text(record(network, 0.2)),
	} {
		if _, err := c.conn.Do("HSET", c.key(network), name, value); err != nil {
			t.Fatal(err)
		}
	}
	r := c.ask(t, network)
	if len(r.Records[network]) != 1 || r.Records[network][0].Modes[0].Mean != 0.2 || r.Invalid != 5 || r.Fault == nil || r.Refused != nil {
		t.Errorf("read %+v", r)
	}
	if _, err := c.conn.Do("SET", c.key(other), "a string"); err != nil {
		t.Fatal(err)
	}
	r = c.exchange(t, belief.Exchange{Measured: []belief.Shared{record(other, 0.1), record(network, 0.3)}, Asked: []netip.Prefix{other, network}})
	if r.Invalid < 3 || r.Refused != nil || len(r.Records[network]) != 1 {
		t.Errorf("beside a key of another program: %+v", r)
	}
}

// TestRefused: what the store refuses is said, and the connection stays where it can.
func TestRefused(t *testing.T) {
	address, _ := server(t, freePort(t), "--requirepass", "secret")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, password := range []string{"", "wrong"} {
		c := client(t, Options{Address: address, Site: "s", Server: "10.0.0.1", Password: password})
		r, err := c.Exchange(ctx, belief.Exchange{Measured: []belief.Shared{record(network, 0.1)}})
		if text := fmt.Sprint(err, r.Refused); !strings.Contains(text, "NOAUTH") && !strings.Contains(text, "WRONGPASS") {
			t.Errorf("password %q: %s", password, text)
		}
	}
	c := client(t, Options{Address: address, Site: "s", Server: "10.0.0.1", User: "default", Password: "secret", Database: 3})
	if _, err := c.Exchange(ctx, belief.Exchange{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.conn.Do("CONFIG", "SET", "maxmemory", "1"); err != nil {
		t.Fatal(err)
	}
	r, err := c.Exchange(ctx, belief.Exchange{Measured: []belief.Shared{record(network, 0.1)}, Asked: []netip.Prefix{network}})
	if err != nil || r.Refused == nil || !strings.Contains(r.Refused.Error(), "OOM") {
		t.Errorf("a full store: %+v, %v", r, err)
	}
}

// TestGone: the store stops, and is used again after it returns with nothing in it.
func TestGone(t *testing.T) {
	address, stop := server(t, freePort(t))
	c := client(t, Options{Address: address, Site: "s", Server: "10.0.0.1"})
	x := belief.Exchange{Measured: []belief.Shared{record(network, 0.1)}}
	c.exchange(t, x)
	stop()
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := c.Exchange(ctx, x); err == nil {
			t.Error("no error without a store")
		}
		cancel()
	}
	_, port, _ := net.SplitHostPort(address)
	server(t, port)
	c.exchange(t, x)
}

// TestTLS: only a store with a certificate of the authority is used, and only by a client that has
// one too.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	authority, roots := certificate.Write(t, dir, "localhost")
	port := freePort(t)
	server(t, freePort(t), "--tls-port", port, "--tls-cert-file", dir+"/localhost.pem", "--tls-key-file", dir+"/localhost-key.pem", "--tls-ca-cert-file", dir+"/localhost.pem")
	options := func() Options {
		o, err := Parse("valkeys://localhost:" + port)
		if err != nil {
			t.Fatal(err)
		}
		o.Site, o.Server = "s", "10.0.0.1"
		o.TLS.RootCAs, o.TLS.Certificates = roots, []tls.Certificate{authority}
		return o
	}
	client(t, options()).exchange(t, belief.Exchange{})
	for name, change := range map[string]func(*Options){
		"unknown authority": func(o *Options) { o.TLS.RootCAs = nil },
		"another name":      func(o *Options) { o.TLS.ServerName = "elsewhere" },
		"no certificate":    func(o *Options) { o.TLS.Certificates = nil },
		"no TLS":            func(o *Options) { o.TLS = nil },
	} {
		o := options()
		change(&o)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := client(t, o).Exchange(ctx, belief.Exchange{}); err == nil {
			t.Errorf("%s: no error", name)
		}
		cancel()
	}
}

// stranger listens, and answers whatever it is asked with the bytes that answer writes.
func stranger(t *testing.T, answer func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = bufio.NewReader(conn).ReadByte()
				answer(conn)
			}()
		}
	}()
	return l.Addr().String()
}

// TestStranger: what is no store, or a hostile one, costs neither memory nor more than the time of
// an exchange.
func TestStranger(t *testing.T) {
	say := func(text string) func(net.Conn) { return func(c net.Conn) { _, _ = io.WriteString(c, text) } }
	forever := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			for {
				if _, err := io.WriteString(c, text); err != nil {
					return
				}
			}
		}
	}
	for name, answer := range map[string]func(net.Conn){
		"web server":    say("HTTP/1.1 400 Bad Request\r\n\r\n"),
		"huge string":   say("$9223372036854775807\r\n"),
		"huge array":    say("*1000000000\r\n"),
		"negative":      say("$-9\r\n"),
		"nested":        forever("*1\r\n"),
		"endless line":  forever("+++++++++++++++++++++++"),
		"endless":       forever(strings.Repeat("x", 1<<16) + "\n"),
		"closed":        say(""),
		"empty lines":   forever("\r\n"),
		"short string":  say("$5\r\nab"),
		"wrong length":  say("$1\r\nabcdef\r\n"),
		"silent":        func(net.Conn) { time.Sleep(2 * time.Second) },
		"a byte a time": func(c net.Conn) { slowly(c, "*32\r\n"+strings.Repeat("$1\r\na\r\n", 32)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := client(t, Options{Address: stranger(t, answer), Site: "s", Server: "10.0.0.1"})
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if r, err := c.Exchange(ctx, belief.Exchange{Asked: []netip.Prefix{network}}); err == nil || len(r.Records) > 0 || c.conn != nil {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

func slowly(c net.Conn, text string) {
	for i := range text {
		if _, err := c.Write([]byte{text[i]}); err != nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestCanceled: an exchange ends with its context, not at its deadline.
func TestCanceled(t *testing.T) {
	c := client(t, Options{Address: stranger(t, func(net.Conn) { time.Sleep(5 * time.Second) }), Site: "s", Server: "10.0.0.1"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := c.Exchange(ctx, belief.Exchange{}); err == nil || errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// FuzzReplies: no reply, in whatever pieces it arrives, panics or is accepted beyond its bounds.
func FuzzReplies(f *testing.F) {
	for _, seed := range []string{"+PONG\r\n", "*2\r\n$1\r\na\r\n$2\r\n{}\r\n", "$-1\r\n", "*-1\r\n", "-WRONGTYPE x\r\n", ":7\r\n", "*1\r\n*1\r\n", "$99999999999\r\n"} {
		f.Add([]byte(seed), uint8(3))
	}
	f.Fuzz(func(t *testing.T, reply []byte, piece uint8) {
		here, there := net.Pipe()
		go func() {
			defer there.Close()
			go func() { _, _ = io.Copy(io.Discard, there) }()
			for rest := reply; len(rest) > 0; {
				n := min(int(piece)+1, len(rest))
				if _, err := there.Write(rest[:n]); err != nil {
					return
				}
				rest = rest[n:]
			}
		}()
		wire := &guard{Conn: here}
		c := &Client{o: Options{Site: "s", Server: "10.0.0.1"}, wire: wire, conn: redis.NewConn(wire, 0, 0)}
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		r, err := c.Exchange(ctx, belief.Exchange{Asked: []netip.Prefix{network}})
		for p, list := range r.Records {
			if p != network || len(list) > mostServers {
				t.Errorf("%d records of %s, %v", len(list), p, err)
			}
		}
		accessor.Call(t, r)
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"valkey://host:6379", "rediss://u:p@[::1]/1", "valkey://%zz@"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		o, err := Parse(text)
		if _, _, split := net.SplitHostPort(o.Address); err == nil && split != nil {
			t.Errorf("%q: address %q", text, o.Address)
		}
	})
}
