package proxy

import (
	"encoding"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

func listen(t testing.TB, text string) (l Listen) {
	t.Helper()
	if err := l.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return l
}

func to(t testing.TB, text string) (u Upstream) {
	t.Helper()
	if err := u.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return u
}

// TestValues: each value is written as it was read.
func TestValues(t *testing.T) {
	for text, v := range map[string]interface {
		encoding.TextUnmarshaler
		encoding.TextMarshaler
	}{
		"tcp://[::]:8080": &Listen{}, "mptcp://192.0.2.1:443": &Listen{}, "socks5://[::1]:1080": &Listen{}, "transparent://lan0": &Listen{},
		"mptcp": &Upstream{}, "tcp": &Upstream{}, "mptcp://hq.example:8080": &Upstream{}, "tcp://[2001:db8::1]:80": &Upstream{}, "tcp://10.2.0.5:443": &Upstream{},
		"v1": new(HeaderVersion), "v2": new(HeaderVersion), "auto": new(Pace), "30Mbit/s": new(Pace),
	} {
		if err := v.UnmarshalText([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if got, err := v.MarshalText(); err != nil || string(got) != text {
			t.Errorf("%s is written as %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "tcp", "tcp://", "tcp://:80", "tcp://[::1]:0", "tcp://hq:80", "http://[::1]:80", "transparent://", "transparent://a b", "transparent://0123456789abcdef", "tcp://[fe80::1%lo]:80", "tcp://[::ffff:1.2.3.4]:80"} {
		if err := new(Listen).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("listen %q is accepted", text)
		}
	}
	for _, text := range []string{"", "http", "tcp://", "tcp://hq", "tcp://hq:0", "tcp://hq:x", "tcp://::1:80", "tcp://[hq]:80", "tcp://-/:80", "tcp://[::1%lo]:80"} {
		if err := new(Upstream).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("upstream %q is accepted", text)
		}
	}
}

func TestCheck(t *testing.T) {
	everybody := []netip.Prefix{netip.MustParsePrefix("::/0")}
	fixed := Listener{Listen: listen(t, "tcp://[::1]:1"), Upstream: to(t, "mptcp://hq.example:80")}
	for name, tt := range map[string]struct {
		change func(*Listener)
		want   string // in the only fault; empty: none
	}{
		"good":               {func(*Listener) {}, ""},
		"open relay":         {func(l *Listener) { l.Listen = listen(t, "tcp://[::]:1") }, "allow: must have the prefixes"},
		"allowed":            {func(l *Listener) { l.Listen, l.Allow = listen(t, "tcp://[::]:1"), everybody }, ""},
		"host bits":          {func(l *Listener) { l.Allow = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")} }, "host bits"},
		"socks to one host":  {func(l *Listener) { l.Listen = listen(t, "socks5://[::1]:1") }, "name their destination"},
		"fixed without host": {func(l *Listener) { l.Upstream = to(t, "mptcp") }, "must have a host"},
		"no upstream":        {func(l *Listener) { l.Upstream = Upstream{} }, "upstream: must be given"},
		"both":               {func(l *Listener) { l.Upstreams = []Upstream{to(t, "tcp://a:1")} }, "beside upstream"},
		"twice": {func(l *Listener) {
			l.Upstream = Upstream{}
			l.Upstreams = []Upstream{to(t, "tcp://a:1"), to(t, "tcp://a:1")}
		}, "twice"},
		"ports":       {func(l *Listener) { l.Match.Ports = []uint16{80} }, "transparent listeners"},
		"transparent": {func(l *Listener) { l.Listen, l.Upstream = listen(t, "transparent://lan0"), to(t, "mptcp") }, ""},
		"port 0": {func(l *Listener) {
			l.Listen, l.Upstream, l.Match.Ports = listen(t, "transparent://lan0"), to(t, "mptcp"), []uint16{0}
		}, "match.ports"},
		"transparent PROXY header": {func(l *Listener) {
			l.Listen, l.Upstream, l.AcceptProxyProtocol = listen(t, "transparent://lan0"), to(t, "mptcp"), true
		}, "do not know"},
		"transparent reuse_port": {func(l *Listener) {
			l.Listen, l.Upstream, l.ReusePort = listen(t, "transparent://lan0"), to(t, "mptcp"), true
		}, "reuse_port: is for"},
		"idle":    {func(l *Listener) { l.Idle = time.Millisecond }, "idle: must be at least"},
		"nothing": {func(l *Listener) { *l = Listener{} }, "listen: must have a scheme"},
	} {
		l := fixed
		tt.change(&l)
		c := Config{Listeners: []Listener{l}}
		switch faults := c.Check(); {
		case tt.want == "" && len(faults) > 0, tt.want != "" && (len(faults) != 1 || !strings.Contains(faults.Error(), tt.want)):
			t.Errorf("%s: faults %v, want %q", name, faults, tt.want)
		}
	}
	if c := (Config{Listeners: []Listener{fixed, fixed}}); len(c.Check()) != 1 {
		t.Errorf("the same listener twice: %v", c.Check())
	}
	for name, want := range map[string]int{"bbr": 0, "a name that is too long": 1, "cubic\n": 1} {
		if c := (Config{Listeners: []Listener{fixed}, Congestion: name}); len(c.Check()) != want {
			t.Errorf("congestion %q: %v", name, c.Check())
		}
	}
	open := Listener{Listen: listen(t, "socks5://[::]:1"), Upstream: to(t, "mptcp"), Allow: everybody}
	if c := (Config{Listeners: []Listener{open}}); len(c.Warnings()) != 1 || len(c.Check()) != 0 {
		t.Errorf("an open relay: faults %v, warnings %v", c.Check(), c.Warnings())
	}
}

func FuzzValues(f *testing.F) {
	for _, text := range []string{"tcp://[::]:8080", "transparent://lan0", "mptcp://hq.example:8080", "tcp://[::1]:80", "mptcp", "v1", "auto", "1Gbit/s"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, v := range []interface {
			encoding.TextUnmarshaler
			encoding.TextMarshaler
		}{&Listen{}, &Upstream{}, new(HeaderVersion)} {
			if v.UnmarshalText([]byte(text)) != nil {
				continue
			}
			accessor.Call(t, v)
			written, err := v.MarshalText()
			if err != nil {
				t.Fatalf("write %q: %v", text, err)
			}
			if err := v.UnmarshalText(written); err != nil {
				t.Fatalf("%q is written as %q: %v", text, written, err)
			}
		}
		var p Pace
		_ = p.UnmarshalText([]byte(text))
	})
}
