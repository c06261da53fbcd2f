package rtr

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/rtr"

	"github.com/tabane/tabane/internal/bgp/policy"
	"github.com/tabane/tabane/internal/testkit/accessor"
)

func vrp(prefix string, longest uint8, asn uint32) policy.VRP {
	return policy.VRP{Prefix: netip.MustParsePrefix(prefix), MaxLength: longest, ASN: asn}
}

var (
	one   = vrp("2001:db8:a::/48", 48, 65001)
	two   = vrp("10.0.0.0/8", 24, 65002)
	three = vrp("2001:db8:a::/48", 64, 65001)
)

// fake is a cache that a test plays.
type fake struct {
	t       *testing.T
	conn    net.Conn
	version uint8
	session uint16
}

// query reads a query and returns its type and serial number.
func (f *fake) query() (typ uint8, session uint16, serial uint32) {
	f.t.Helper()
	var h [headerLen]byte
	if _, err := io.ReadFull(f.conn, h[:]); err != nil {
		f.t.Fatal(err)
	}
	if h[0] != f.version {
		f.t.Fatalf("query of version %d, want %d", h[0], f.version)
	}
	body := make([]byte, binary.BigEndian.Uint32(h[4:])-headerLen)
	if _, err := io.ReadFull(f.conn, body); err != nil {
		f.t.Fatal(err)
	}
	if h[1] == typeSerialQuery {
		serial = binary.BigEndian.Uint32(body)
	}
	return h[1], binary.BigEndian.Uint16(h[2:]), serial
}

func (f *fake) send(b []byte) {
	_, _ = f.conn.Write(b) // the client may have closed it already
}

func (f *fake) prefix(v policy.VRP, announce byte) {
	typ, length := uint8(typeIPv4Prefix), 20
	if v.Prefix.Addr().Is6() {
		typ, length = typeIPv6Prefix, 32
	}
	b := append(header(f.version, typ, 0, length), announce, byte(v.Prefix.Bits()), v.MaxLength, 0)
	b = append(b, v.Prefix.Addr().AsSlice()...)
	f.send(binary.BigEndian.AppendUint32(b, v.ASN))
}

func (f *fake) response() { f.send(header(f.version, typeCacheResponse, f.session, headerLen)) }

func (f *fake) end(serial uint32) {
	b := binary.BigEndian.AppendUint32(header(f.version, typeEndOfData, f.session, 12), serial)
	if f.version > 0 {
		b = header(f.version, typeEndOfData, f.session, 24)
		for _, n := range []uint32{serial, 300, 30, 600} {
			b = binary.BigEndian.AppendUint32(b, n)
		}
	}
	f.send(b)
}

// full answers a Reset Query.
func (f *fake) full(serial uint32, list ...policy.VRP) {
	f.t.Helper()
	if typ, _, _ := f.query(); typ != typeResetQuery {
		f.t.Fatalf("query type %d, want a Reset Query", typ)
	}
	f.response()
	for _, v := range list {
		f.prefix(v, 1)
	}
	f.end(serial)
}

// world is a client whose caches are played by the test.
type world struct {
	*Client
	t       *testing.T
	dialed  map[netip.AddrPort]chan net.Conn
	refused sync.Map // addresses
	changes chan *policy.VRPs
	logged  bytes.Buffer // read it after synctest.Wait
	stop    func()
}

func play(t *testing.T, conf Config) *world {
	w := &world{t: t, dialed: map[netip.AddrPort]chan net.Conn{}, changes: make(chan *policy.VRPs, 10)}
	for _, c := range conf.Caches {
		w.dialed[c.Address] = make(chan net.Conn, 1)
	}
	var err error
	w.Client, err = New(Options{
		Config: conf, Log: slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), &w.logged), nil)), Changed: func(v *policy.VRPs) { w.changes <- v },
		dial: func(_ context.Context, address netip.AddrPort) (net.Conn, error) {
			if _, refused := w.refused.Load(address); refused {
				return nil, errors.New("refused")
			}
			ours, theirs := net.Pipe()
			w.dialed[address] <- theirs
			return ours, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	return w
}

func (w *world) cache(i int) *fake {
	w.t.Helper()
	return &fake{t: w.t, conn: <-w.dialed[w.options.Config.Caches[i].Address], version: 1, session: 7}
}

// want waits for changed VRPs.
func (w *world) want(list ...policy.VRP) {
	w.t.Helper()
	slices.SortFunc(list, policy.VRP.Compare)
	select {
	case got := <-w.changes:
		if !slices.Equal(slices.Collect(got.All()), list) {
			w.t.Fatalf("got %v, want %v", slices.Collect(got.All()), list)
		}
	case <-time.After(24 * time.Hour):
		w.t.Fatalf("no change, want %v", list)
	}
}

// unchanged checks that nothing changes now.
func (w *world) unchanged() {
	w.t.Helper()
	synctest.Wait()
	select {
	case got := <-w.changes:
		w.t.Fatalf("changed to %v", slices.Collect(got.All()))
	default:
	}
}

var caches = Config{Caches: []Cache{
	{Address: netip.MustParseAddrPort("[2001:db8::1]:323"), Preference: 1}, {Address: netip.MustParseAddrPort("[2001:db8::2]:323"), Preference: 2},
}}

func single() Config { return Config{Caches: caches.Caches[:1]} }

func TestUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := play(t, single())
		defer w.stop()
		c := w.cache(0)
		c.full(1, one, two)
		w.want(one, two)
		// A notification is answered at once, and what does not change is kept.
		start := time.Now()
		c.send(binary.BigEndian.AppendUint32(header(1, typeSerialNotify, 7, 12), 2))
		if typ, session, serial := c.query(); typ != typeSerialQuery || session != 7 || serial != 1 || time.Since(start) > time.Second {
			t.Fatalf("query %d of session %d from %d after %s", typ, session, serial, time.Since(start))
		}
		c.response()
		c.prefix(one, 0)
		c.prefix(three, 1)
		c.prefix(two, 0)
		c.prefix(two, 1)
		c.end(2)
		w.want(two, three)
		// The refresh interval, with no change.
		if typ, _, serial := c.query(); typ != typeSerialQuery || serial != 2 || time.Since(start) != 300*time.Second {
			t.Fatalf("query %d from %d after %s", typ, serial, time.Since(start))
		}
		c.response()
		c.end(2)
		w.unchanged()
		// The cache does not have the changes any more.
		c.query()
		c.send(header(1, typeCacheReset, 0, headerLen))
		c.full(9, one)
		w.want(one)
		if s := w.Status()[0]; !s.Used || !s.Connected || s.VRPs != 1 || s.Serial != 9 || s.Reason != "" {
			t.Errorf("%+v", s)
		}
	})
}

func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := play(t, single())
		defer w.stop()
		c := w.cache(0)
		c.full(1, one)
		w.want(one)
		start := time.Now()
		c.conn.Close()
		c = w.cache(0)
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("connected again after %s, want the cache's retry interval", d)
		}
		if typ, session, serial := c.query(); typ != typeSerialQuery || session != 7 || serial != 1 {
			t.Fatalf("query %d of session %d from %d", typ, session, serial)
		}
		// It has restarted: another session. The router asks for everything at once.
		c.session = 8
		c.response()
		if typ, code, _ := c.query(); typ != typeErrorReport || code != codeCorruptData {
			t.Errorf("PDU type %d, code %d, want an Error Report", typ, code)
		}
		w.want() // RFC 8210 section 5.1: all data of the cache is flushed
		start = time.Now()
		c = w.cache(0)
		c.session = 8
		c.full(1, two)
		w.want(two)
		if d := time.Since(start); d > time.Second {
			t.Errorf("everything was asked for after %s", d)
		}
		// It restarts while it is connected.
		c.send(binary.BigEndian.AppendUint32(header(1, typeSerialNotify, 9, 12), 1))
		if typ, code, _ := c.query(); typ != typeErrorReport || code != codeCorruptData {
			t.Errorf("PDU type %d, code %d, want an Error Report", typ, code)
		}
		w.want()
		c = w.cache(0)
		c.session = 9
		c.full(1, three)
		w.want(three)
		c.send(binary.BigEndian.AppendUint32(header(1, typeSerialNotify, 9, 12), 2))
		c.query()
		c.response()
		c.session = 10
		c.end(2)
		if typ, code, _ := c.query(); typ != typeErrorReport || code != codeCorruptData {
			t.Errorf("PDU type %d, code %d, want an Error Report", typ, code)
		}
		w.want()
	})
}

func TestExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := single()
		conf.Expire = 5 * time.Minute
		w := play(t, conf)
		defer w.stop()
		c := w.cache(0)
		c.full(1, one)
		w.want(one)
		w.refused.Store(conf.Caches[0].Address, true)
		start := time.Now()
		c.conn.Close()
		w.want()
		if d := time.Since(start); d != 5*time.Minute {
			t.Errorf("expired after %s", d)
		}
		if s := w.Status()[0]; s.Used || s.Connected || s.VRPs != 0 || s.Reason != "refused" {
			t.Errorf("%+v", s)
		}
		w.refused.Delete(conf.Caches[0].Address)
		w.cache(0).full(3, two)
		w.want(two)
	})
}

// TestSilentCache: a cache that is connected and does not answer is not believed for ever.
func TestSilentCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := single()
		conf.Retry = 20 * time.Second
		w := play(t, conf)
		defer w.stop()
		c := w.cache(0)
		start := time.Now()
		c.query()
		c.response()
		c.prefix(one, 1)
		c = w.cache(0)
		if d := time.Since(start); d != answerTimeout+20*time.Second {
			t.Errorf("connected again after %s", d)
		}
		w.unchanged()
		c.full(1, one)
		w.want(one)
	})
}

// TestDrippingCache: a cache that sends one PDU every 59 seconds does not keep another one from
// being used, and does not keep its connection.
func TestDrippingCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := play(t, Config{Caches: caches.Caches, Expire: 2 * time.Hour})
		defer w.stop()
		first, second := w.cache(0), w.cache(1)
		first.full(1, one)
		w.want(one)
		second.full(1, two)
		w.unchanged()
		start := time.Now()
		first.send(binary.BigEndian.AppendUint32(header(1, typeSerialNotify, 7, 12), 2))
		first.query()
		first.response()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for i := uint32(0); ; i++ {
				select {
				case <-time.After(59 * time.Second):
				case <-ctx.Done():
					return
				}
				v := vrp("2001:db8:99::/48", 48, i)
				b := append(header(1, typeIPv6Prefix, 0, 32), 1, 48, v.MaxLength, 0)
				b = append(b, v.Prefix.Addr().AsSlice()...)
				if _, err := first.conn.Write(binary.BigEndian.AppendUint32(b, v.ASN)); err != nil {
					return
				}
			}
		}()
		second.query() // the refresh interval
		second.response()
		second.end(1)
		second.query()
		second.response()
		second.end(1)
		w.want(two)
		if d := time.Since(start); d != answerLimit {
			t.Errorf("the other cache is used after %s", d)
		}
		if s := w.Status(); s[0].Reason != "no complete answer in 10m0s" || s[0].Connected || s[0].Used || !s[1].Used {
			t.Errorf("%+v", s)
		}
		first = w.cache(0)
		first.query()
		first.response()
		first.end(1)
		w.want(one)
	})
}

// TestStartup: notifications before the first answer are ignored, and those of other versions do
// not change ours.
func TestStartup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := play(t, single())
		defer w.stop()
		c := w.cache(0)
		for _, version := range []uint8{0, 1, 2} {
			c.send(binary.BigEndian.AppendUint32(header(version, typeSerialNotify, 99, 12), 5))
		}
		c.full(1, one)
		w.want(one)
		// Later they are of the version of the session.
		c.send(binary.BigEndian.AppendUint32(header(2, typeSerialNotify, 7, 12), 5))
		if typ, code, _ := c.query(); typ != typeErrorReport || code != codeUnexpectedVersion {
			t.Errorf("PDU type %d, code %d, want an Error Report", typ, code)
		}
	})
}

// TestIntervals: intervals out of bounds are replaced by the bounds.
func TestIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := play(t, single())
		defer w.stop()
		c := w.cache(0)
		c.query()
		c.response()
		c.prefix(one, 1)
		b := binary.BigEndian.AppendUint32(header(1, typeEndOfData, 7, 24), 1)
		for _, seconds := range []uint32{0, 0, 1} {
			b = binary.BigEndian.AppendUint32(b, seconds)
		}
		c.send(b)
		w.want(one)
		start := time.Now()
		c.query()
		if d := time.Since(start); d != minInterval {
			t.Errorf("refreshed after %s", d)
		}
		w.refused.Store(caches.Caches[0].Address, true)
		c.conn.Close()
		w.want()
		if d := time.Since(start); d != minExpire {
			t.Errorf("expired after %s", d)
		}
	})
}

// TestIntervalsAreLoggedOnce: a cache that sends the same intervals out of bounds now and then, as
// Routinator does, is logged once.
func TestIntervalsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := play(t, single())
		defer w.stop()
		c := w.cache(0)
		for serial, refresh := range []uint32{0, 600, 0, 600, 0} {
			c.query()
			c.response()
			if serial == 0 {
				c.prefix(one, 1)
			}
			b := binary.BigEndian.AppendUint32(header(1, typeEndOfData, 7, 24), uint32(serial))
			for _, seconds := range []uint32{refresh, 600, 7200} {
				b = binary.BigEndian.AppendUint32(b, seconds)
			}
			c.send(b)
		}
		w.want(one)
		synctest.Wait()
		if n := strings.Count(w.logged.String(), "out of bounds"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}

// TestMalformedErrorReport: errors of Error Reports are not reported (RFC 8210 section 5.11).
func TestMalformedErrorReport(t *testing.T) {
	for name, pdu := range map[string][]byte{
		"length":  header(1, typeErrorReport, 0, maxPDU+1)[:headerLen],
		"version": header(2, typeErrorReport, 0, 16),
		"content": append(header(1, typeErrorReport, 0, 16), 0, 0, 0, 9, 0, 0, 0, 0),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := play(t, single())
				defer w.stop()
				c := w.cache(0)
				c.query()
				c.send(pdu)
				if b, err := io.ReadAll(c.conn); err != nil || len(b) > 0 {
					t.Errorf("answered with %x: %v", b, err)
				}
			})
		})
	}
}

func TestPreference(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := play(t, Config{Caches: []Cache{caches.Caches[1], caches.Caches[0]}})
		defer w.stop()
		second, first := w.cache(0), w.cache(1)
		second.full(1, two)
		w.want(two)
		first.full(1, one)
		w.want(one)
		// The other one's changes are kept, not used.
		second.send(binary.BigEndian.AppendUint32(header(1, typeSerialNotify, 7, 12), 2))
		second.query()
		second.response()
		second.prefix(three, 1)
		second.end(2)
		w.unchanged()
		w.refused.Store(caches.Caches[0].Address, true)
		first.conn.Close()
		w.want(two, three)
		// Without any connection, the data of both is used until it expires.
		w.refused.Store(caches.Caches[1].Address, true)
		second.conn.Close()
		w.want(one)
		w.refused.Delete(caches.Caches[0].Address)
		first = w.cache(1)
		first.query()
		first.response()
		first.prefix(three, 1)
		first.end(2)
		w.want(one, three)
	})
}

func TestOldVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := play(t, single())
		defer w.stop()
		c := w.cache(0)
		c.query()
		c.send(errorReport(0, codeUnsupportedVersion, "no"))
		c = w.cache(0)
		c.version = 0
		c.full(1, one)
		w.want(one)
		start := time.Now()
		c.query()
		if d := time.Since(start); d != defaultRefresh {
			t.Errorf("refreshed after %s", d)
		}
	})
}

// TestProtocolErrors: what contradicts the protocol ends the connection with an Error Report, and
// changes nothing.
func TestProtocolErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		do   func(c *fake)
		code uint16
	}{
		"unknown withdrawal": {func(c *fake) { c.response(); c.prefix(two, 0); c.end(2) }, codeUnknownWithdrawal},
		"repeated":           {func(c *fake) { c.response(); c.prefix(one, 1); c.end(2) }, codeDuplicate},
		"repeated at once":   {func(c *fake) { c.response(); c.prefix(two, 1); c.prefix(two, 1) }, codeDuplicate},
		"no response":        {func(c *fake) { c.prefix(two, 1) }, codeCorruptData},
		"end of nothing":     {func(c *fake) { c.end(2) }, codeCorruptData},
		"two responses":      {func(c *fake) { c.response(); c.response() }, codeInvalidRequest},
		"reset within":       {func(c *fake) { c.response(); c.send(header(1, typeCacheReset, 0, headerLen)) }, codeInvalidRequest},
		"version":            {func(c *fake) { c.version = 0; c.response(); c.version = 1 }, codeUnexpectedVersion},
		"new version":        {func(c *fake) { c.version = 2; c.response(); c.version = 1 }, codeUnexpectedVersion},
		"type":               {func(c *fake) { c.send(header(1, 99, 0, headerLen)) }, codeUnsupportedType},
		"length":             {func(c *fake) { c.send(header(1, typeCacheResponse, 7, headerLen+1)) }, codeCorruptData},
		"long":               {func(c *fake) { c.send(header(1, typeRouterKey, 0, maxPDU+1)) }, codeCorruptData},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := play(t, single())
				defer w.stop()
				c := w.cache(0)
				c.full(1, one)
				w.want(one)
				c.send(binary.BigEndian.AppendUint32(header(1, typeSerialNotify, 7, 12), 2))
				c.query()
				tt.do(c)
				if typ, code, _ := c.query(); typ != typeErrorReport || code != tt.code {
					t.Errorf("PDU type %d, code %d, want an Error Report with %d", typ, code, tt.code)
				}
				w.unchanged()
				w.cache(0).full(5, two)
				w.want(two)
			})
		})
	}
}

// TestUpdateLimit: updates that are small enough do not add up to more VRPs than the limit.
func TestUpdateLimit(t *testing.T) {
	one, two, three := vrp("2001:db8:1::/48", 48, 1), vrp("2001:db8:2::/48", 48, 2), vrp("2001:db8:3::/48", 48, 3)
	for _, tt := range []struct {
		list []policy.VRP
		ok   bool
	}{{[]policy.VRP{two}, true}, {[]policy.VRP{two, three}, false}} {
		u := newUpdate(true, policy.NewVRPs([]policy.VRP{one}))
		u.limit = 2
		for _, v := range tt.list {
			if err := u.add(v, true); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := u.apply(); (err == nil) != tt.ok {
			t.Errorf("%d VRPs: %v", 1+len(tt.list), err)
		}
	}
}

func TestCheck(t *testing.T) {
	c := Config{
		Caches:  []Cache{{}, {Address: netip.MustParseAddrPort("[2001:db8::1]:0")}, caches.Caches[0], caches.Caches[0]},
		Refresh: time.Millisecond, Retry: 3 * time.Hour, Expire: time.Millisecond,
	}
	got := c.Check().Error()
	for _, want := range []string{"caches[0].address: must be", "caches[1].address: must be", "caches[3].address: [2001:db8::1]:323 is already caches[2]", "refresh: must be", "retry: must be", "expire: must be"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nlacks %q", got, want)
		}
	}
	if got := (&Config{}).Check().Error(); got != "caches: must name at least one cache" {
		t.Error(got)
	}
}

// FuzzReadPDU compares prefixes with GoBGP's reading of version 0.
func FuzzReadPDU(f *testing.F) {
	f.Add(errorReport(1, 2, "text"))
	f.Add(header(1, typeCacheResponse, 7, headerLen))
	var b bytes.Buffer
	for _, v := range []policy.VRP{one, two} {
		b.Reset()
		serialized, err := gobgp.NewRTRIPPrefix(v.Prefix.Addr(), uint8(v.Prefix.Bits()), v.MaxLength, v.ASN, gobgp.ANNOUNCEMENT).Serialize()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(serialized)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := readPDU(bufio.NewReader(bytes.NewReader(data)))
		accessor.Call(t, p.vrp, err)
		var bad *protocolError
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.As(err, &bad) && p.typ != typeErrorReport {
				t.Fatal(err)
			}
			return
		}
		if p.typ != typeIPv4Prefix && p.typ != typeIPv6Prefix {
			return
		}
		m, err := gobgp.ParseRTR(data[:binary.BigEndian.Uint32(data[4:])])
		if err != nil {
			t.Fatalf("%+v: GoBGP: %v", p, err)
		}
		if g, ok := m.(*gobgp.RTRIPPrefix); !ok || g.Prefix != p.vrp.Prefix.Addr() || int(g.PrefixLen) != p.vrp.Prefix.Bits() || g.MaxLen != p.vrp.MaxLength || g.AS != p.vrp.ASN || (g.Flags&1 == 1) != p.announce {
			t.Errorf("%+v, GoBGP has %+v", p, m)
		}
	})
}
