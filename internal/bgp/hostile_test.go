package bgp

import (
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/tabane/tabane/internal/bgp/vpn"
)

// rawPeer is the other end of a session, which sends messages that no proper speaker sends.
type rawPeer struct {
	t    *testing.T
	conn net.Conn
}

// dialRaw opens a session with r from address n, with additional capabilities.
func dialRaw(t *testing.T, r *router, n int, as uint32, more ...gobgp.ParameterCapabilityInterface) *rawPeer {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: address(n).AsSlice()}}
	var conn net.Conn
	for {
		c, err := d.DialContext(t.Context(), "tcp", netip.AddrPortFrom(address(r.n), DefaultPort).String())
		if err != nil {
			t.Fatal(err)
		}
		// A speaker to which the neighbor was just added closes the connection.
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		header := make([]byte, gobgp.BGP_HEADER_LENGTH)
		if _, err := io.ReadFull(c, header); err == nil {
			io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint16(header[16:]))-gobgp.BGP_HEADER_LENGTH)
			conn = c
			break
		}
		c.Close()
	}
	conn.SetReadDeadline(time.Time{})
	p := &rawPeer{t: t, conn: conn}
	open, err := gobgp.NewBGPOpenMessage(uint16(as), 90, netip.AddrFrom4([4]byte{10, 9, 9, byte(n)}),
		[]gobgp.OptionParameterInterface{gobgp.NewOptionParameterCapability(append([]gobgp.ParameterCapabilityInterface{
			gobgp.NewCapMultiProtocol(gobgp.RF_IPv6_UC), gobgp.NewCapMultiProtocol(gobgp.RF_IPv6_VPN),
			gobgp.NewCapFourOctetASNumber(as),
		}, more...))})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*gobgp.BGPMessage{open, gobgp.NewBGPKeepAliveMessage()} {
		b, err := m.Serialize()
		if err != nil {
			t.Fatal(err)
		}
		p.write(b)
	}
	var wg sync.WaitGroup
	wg.Go(func() { io.Copy(io.Discard, conn) })
	t.Cleanup(func() { conn.Close(); wg.Wait() })
	return p
}

func (p *rawPeer) write(b []byte) {
	p.t.Helper()
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// update sends path attributes given in wire format.
func (p *rawPeer) update(attrs ...[]byte) {
	p.t.Helper()
	body := slices.Concat(attrs...)
	msg := slices.Concat(
		slices.Repeat([]byte{0xff}, 16), be16(19+4+len(body)), []byte{gobgp.BGP_MSG_UPDATE},
		[]byte{0, 0}, be16(len(body)), body,
	)
	p.write(msg)
}

func be16(n int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(n)) }

func attr(flags, kind byte, value ...[]byte) []byte {
	v := slices.Concat(value...)
	return slices.Concat([]byte{flags | 0x10, kind}, be16(len(v)), v)
}

func tlv(kind byte, value ...[]byte) []byte {
	v := slices.Concat(value...)
	return slices.Concat([]byte{kind}, be16(len(v)), v)
}

var (
	rawOrigin    = attr(0x40, 1, []byte{0})
	rawLocalPref = attr(0x40, 5, []byte{0, 0, 0, 100})
	rawTarget    = attr(0xc0, 16, []byte{0, 2, 0xfd, 0xe8, 0, 0, 0, 101}) // 65000:101
)

func rawPath(segments ...[]byte) []byte { return attr(0x40, 2, segments...) }

// segment returns a segment of an AS path; kind 1 is AS_SET, 2 AS_SEQUENCE.
func segment(kind byte, asns ...uint32) []byte {
	b := []byte{kind, byte(len(asns))}
	for _, a := range asns {
		b = binary.BigEndian.AppendUint32(b, a)
	}
	return b
}

// vpnReach returns an MP_REACH_NLRI with p in RD 65000:1 and the three bytes of a label field.
func vpnReach(p netip.Prefix, label ...byte) []byte {
	nlri := slices.Concat([]byte{byte(24 + 64 + p.Bits())}, label, []byte{0, 0, 0xfd, 0xe8, 0, 0, 0, 1},
		p.Addr().AsSlice()[:(p.Bits()+7)/8])
	return attr(0x80, 14, []byte{0, 2, 128, 24}, make([]byte, 8), address(20).AsSlice(), []byte{0}, nlri)
}

func unicastReach(p netip.Prefix, nextHops ...netip.Addr) []byte {
	var nh []byte
	for _, a := range nextHops {
		nh = append(nh, a.AsSlice()...)
	}
	return attr(0x80, 14, []byte{0, 2, 1, byte(len(nh))}, nh, []byte{0, byte(p.Bits())}, p.Addr().AsSlice()[:(p.Bits()+7)/8])
}

// prefixSID returns a Prefix-SID attribute with these TLVs.
func prefixSID(tlvs ...[]byte) []byte { return attr(0xc0, 40, tlvs...) }

// l3 returns an SRv6 L3 Service TLV with these sub-TLVs.
func l3(subTLVs ...[]byte) []byte { return tlv(5, []byte{0}, slices.Concat(subTLVs...)) }

// sidInfo returns an SRv6 SID Information Sub-TLV.
func sidInfo(sid string, behavior int, subSubTLVs ...[]byte) []byte {
	return tlv(1, []byte{0}, addr(sid).AsSlice(), []byte{0}, be16(behavior), []byte{0}, slices.Concat(subSubTLVs...))
}

func sidStructure(b ...byte) []byte { return tlv(1, b) }

var (
	plain       = sidStructure(32, 16, 16, 0, 0, 0)
	transposed  = sidStructure(32, 16, 16, 0, 16, 48)
	nullLabel   = []byte{0, 0, 0x31}
	goodService = prefixSID(l3(sidInfo("fcbb:1:1:a::", 18, plain)))
)

// prefixSIDCases are Prefix-SID attributes and labels that a neighbor may send.
var prefixSIDCases = []struct {
	name   string
	label  []byte
	attrs  [][]byte // in addition to the common ones
	reason RejectReason
	sid    string
}{
	{"full sid", nullLabel, [][]byte{rawTarget, goodService}, "", "fcbb:1:1:a::"},
	{"transposed", []byte{0x00, 0x0a, 0x01}, [][]byte{rawTarget, prefixSID(l3(sidInfo("fcbb:1:1::", 18, transposed)))}, "", "fcbb:1:1:a::"},
	{"opaque behavior, low bits of the label changed, no bottom of stack", []byte{0x00, 0x0a, 0xfe},
		[][]byte{rawTarget, prefixSID(l3(sidInfo("fcbb:1:1::", 0xffff, transposed)))}, "", "fcbb:1:1:a::"},
	{"label that looks like a withdrawal", []byte{0x80, 0x00, 0x00},
		[][]byte{rawTarget, prefixSID(l3(sidInfo("fcbb:1:1::", 18, transposed)))}, "", "fcbb:1:1:8000::"},
	{"no structure", nullLabel, [][]byte{rawTarget, prefixSID(l3(sidInfo("fcbb:1:1:a::1", 18)))}, "", "fcbb:1:1:a::1"},
	{"unknown tlv, sub-tlv and sub-sub-tlv", nullLabel, [][]byte{rawTarget, prefixSID(tlv(99, make([]byte, 5)),
		l3(tlv(77, make([]byte, 4)), sidInfo("fcbb:1:1:a::", 18, tlv(55, make([]byte, 9)), plain)))}, "", "fcbb:1:1:a::"},
	{"second sid", nullLabel, [][]byte{rawTarget, prefixSID(l3(sidInfo("fcbb:1:1:a::", 18, plain), sidInfo("fcbb:1:1:b::", 18, plain)))}, "", "fcbb:1:1:a::"},
	{"no attribute", nullLabel, [][]byte{rawTarget}, RejectNoPrefixSID, ""},
	{"empty attribute", nullLabel, [][]byte{rawTarget, prefixSID()}, RejectNoPrefixSID, ""}, // RFC 7606 section 4
	{"label index", nullLabel, [][]byte{rawTarget, prefixSID(tlv(1, make([]byte, 7)))}, RejectNoL3Service, ""},
	{"l2 service", nullLabel, [][]byte{rawTarget, prefixSID(tlv(6, []byte{0}, sidInfo("fcbb:1:1:a::", 18, plain)))}, RejectNoL3Service, ""},
	{"service without sid", nullLabel, [][]byte{rawTarget, prefixSID(l3())}, RejectNoL3Service, ""},
	{"tlv longer than the attribute", nullLabel, [][]byte{rawTarget, prefixSID([]byte{5, 0, 200, 0, 0})}, RejectNoPrefixSID, ""},
	{"sub-tlv longer than the tlv", nullLabel, [][]byte{rawTarget, prefixSID(l3([]byte{1, 0, 99, 0}))}, RejectNoPrefixSID, ""},
	{"sub-tlv too short", nullLabel, [][]byte{rawTarget, prefixSID(l3(tlv(1, make([]byte, 20))))}, RejectNoPrefixSID, ""},
	{"structure too short", nullLabel, [][]byte{rawTarget, prefixSID(l3(sidInfo("fcbb:1:1:a::", 18, sidStructure(32, 16, 16, 0, 0))))}, RejectNoPrefixSID, ""},
	{"structure longer than a sid", nullLabel, [][]byte{rawTarget, prefixSID(l3(sidInfo("fcbb:1:1:a::", 18, sidStructure(64, 32, 32, 1, 0, 0))))}, RejectStructure, ""},
	{"transposed beyond a label", nullLabel, [][]byte{rawTarget, prefixSID(l3(sidInfo("fcbb:1:1::", 18, sidStructure(32, 16, 32, 0, 21, 48))))}, RejectStructure, ""},
	{"transposed beyond the sid", nullLabel, [][]byte{rawTarget, prefixSID(l3(sidInfo("fcbb:1:1::", 18, sidStructure(32, 16, 16, 0, 16, 120))))}, RejectStructure, ""},
	{"bits outside of the structure", nullLabel, [][]byte{rawTarget, prefixSID(l3(sidInfo("fcbb:1:1:a::1", 18, plain)))}, RejectSID, ""},
	{"multicast", nullLabel, [][]byte{rawTarget, prefixSID(l3(sidInfo("ff02:1:1:a::", 18, plain)))}, RejectSID, ""},
	{"mapped", nullLabel, [][]byte{rawTarget, prefixSID(l3(sidInfo("::ffff:192.0.2.1", 18)))}, RejectSID, ""},
	{"unspecified", nullLabel, [][]byte{rawTarget, prefixSID(l3(sidInfo("::", 18)))}, RejectSID, ""},
	{"link-local", nullLabel, [][]byte{rawTarget, prefixSID(l3(sidInfo("fe80:1:1:a::", 18, plain)))}, RejectSID, ""},
	{"no route target", nullLabel, [][]byte{goodService}, RejectNoTarget, ""},
	{"site of origin only", nullLabel, [][]byte{attr(0xc0, 16, []byte{0, 3, 0xfd, 0xe8, 0, 0, 0, 101}), goodService}, RejectNoTarget, ""},
}

// TestPrefixSIDFromWire: no attribute of a reflector closes the session, and routes that cannot be
// used are reported as rejected.
func TestPrefixSIDFromWire(t *testing.T) {
	r := newRouter(t, 16, 65000)
	n := Neighbor{Name: "raw", Address: address(20), ASN: 65000, Families: []Family{IPv6Unicast, VPNv6}, Passive: true}
	r.must(r.AddNeighbor(n))
	p := dialRaw(t, r, 20, 65000)
	r.wait("session", func() bool { return r.up["raw"] })

	rd, err := vpn.Parse("65000:1")
	r.must(err)
	target := VPNKey{rd, prefix("2a00::/32")}
	for _, c := range prefixSIDCases {
		t.Run(c.name, func(t *testing.T) {
			// The route is valid at first, so that every case withdraws a route, and
			// could leave it behind.
			p.update(slices.Concat(rawOrigin, rawPath(), rawLocalPref, rawTarget,
				prefixSID(l3(sidInfo("fcbb:1:1:f::", 18, plain))), vpnReach(target.Prefix, nullLabel...)))
			r.wait("good route", func() bool { return r.vpn[target].SID == addr("fcbb:1:1:f::") })
			p.update(slices.Concat(rawOrigin, rawPath(), rawLocalPref, slices.Concat(c.attrs...), vpnReach(target.Prefix, c.label...)))
			if c.reason == "" {
				r.wait("route", func() bool { return r.vpn[target].SID == addr(c.sid) })
				return
			}
			r.wait("refusal", func() bool { return r.refused[target] != nil })
			got, ok := r.refused[target].(*RejectedError)
			if !ok || got.Reason != c.reason || got.Error() == "" {
				t.Errorf("refused because of %v, want %s", r.refused[target], c.reason)
			}
		})
	}

	t.Run("attribute flags", func(t *testing.T) {
		p.update(slices.Concat(rawOrigin, rawPath(), rawLocalPref, rawTarget, goodService, vpnReach(target.Prefix, nullLabel...)))
		r.wait("good route", func() bool { return r.vpn[target].SID.IsValid() })
		p.update(slices.Concat(rawOrigin, rawPath(), rawLocalPref, rawTarget,
			attr(0x40, 40, l3(sidInfo("fcbb:1:1:a::", 18, plain))), vpnReach(target.Prefix, nullLabel...)))
		r.wait("withdrawal", func() bool { _, ok := r.vpn[target]; return !ok })
	})

	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.downs) > 0 {
		t.Errorf("session ended: %v", r.downs)
	}
}

// TestVPNRoutesOfFRR applies captured UPDATEs of FRR, with transposed and complete SIDs.
func TestVPNRoutesOfFRR(t *testing.T) {
	r := newRouter(t, 20, 65000)
	n := Neighbor{Name: "frr", Address: address(24), ASN: 65000, Families: []Family{VPNv4, VPNv6}, Passive: true}
	r.must(r.AddNeighbor(n))
	p := dialRaw(t, r, 24, 65000, gobgp.NewCapMultiProtocol(gobgp.RF_IPv4_VPN))
	r.wait("session", func() bool { return r.up["frr"] })
	captured, err := os.ReadFile("message/testdata/frr.txt")
	r.must(err)
	for line := range strings.Lines(string(captured)) {
		if name, text, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
			b, err := hex.DecodeString(text)
			r.must(err)
			p.write(b)
		}
	}
	for _, want := range []struct{ rd, prefix, nextHop, sid string }{
		{"65000:6", "2001:db8:c::/64", "fd00:ff::1", "fcbb:0:1:1:200::"},
		{"65000:6", "2001:db8:d::/48", "fd00:ff::1", "fcbb:0:1:1:200::"},
		{"65000:4", "198.51.100.0/24", "10.0.0.1", "fcbb:0:1:1:100::"},
		{"10.0.0.1:7", "2001:db8:e::/48", "fd00:2::3", "fcbb:0:1:e001::"},
	} {
		rd, err := vpn.Parse(want.rd)
		r.must(err)
		key := VPNKey{rd, prefix(want.prefix)}
		r.wait(want.prefix, func() bool { return r.vpn[key].SID == addr(want.sid) && r.vpn[key].NextHop == addr(want.nextHop) })
	}
}

// TestTransitFromWire: routes as a transit may send them, and how they are reported.
func TestTransitFromWire(t *testing.T) {
	r := newRouter(t, 17, 65000)
	n := Neighbor{
		Name: "raw", Address: address(21), ASN: 65001, Families: []Family{IPv6Unicast}, Passive: true,
		Import: ImportPolicy{Reject: Within(RejectMartian, ownSpace), MaxPrefixes: PrefixLimit{Limit: 1}},
	}
	r.must(r.AddNeighbor(n))
	p := dialRaw(t, r, 21, 65001)
	r.wait("session", func() bool { return r.up["raw"] })

	good, marker := prefix("2a00:1::/32"), prefix("2a00:ffff::/32")
	announced := func(p netip.Prefix) func() bool {
		return func() bool { _, ok := r.adjIn["raw"][p]; return ok }
	}
	gone := func(p netip.Prefix) func() bool {
		return func() bool { _, ok := r.adjIn["raw"][p]; return !ok }
	}
	for name, attrs := range map[string][]byte{
		"own as in the path":   slices.Concat(rawOrigin, rawPath(segment(2, 65001, 65000)), unicastReach(good, address(21))),
		"as set":               slices.Concat(rawOrigin, rawPath(segment(2, 65001), segment(1, 64998, 64999)), unicastReach(good, address(21))),
		"no origin":            slices.Concat(rawPath(segment(2, 65001)), unicastReach(good, address(21))),
		"wrong origin":         slices.Concat(attr(0x40, 1, []byte{9}), rawPath(segment(2, 65001)), unicastReach(good, address(21))),
		"broken path":          slices.Concat(rawOrigin, rawPath([]byte{2, 9, 0, 0}), unicastReach(good, address(21))),
		"ipv4 next hop":        slices.Concat(rawOrigin, rawPath(segment(2, 65001)), unicastReach(good, addr("192.0.2.1"))),
		"mapped next hop":      slices.Concat(rawOrigin, rawPath(segment(2, 65001)), unicastReach(good, addr("::ffff:192.0.2.1"))),
		"multicast next hop":   slices.Concat(rawOrigin, rawPath(segment(2, 65001)), unicastReach(good, addr("ff02::1"))),
		"unspecified next hop": slices.Concat(rawOrigin, rawPath(segment(2, 65001)), unicastReach(good, addr("::"))),
	} {
		t.Run(name, func(t *testing.T) {
			p.update(rawOrigin, rawPath(segment(2, 65001)), unicastReach(good, address(21)))
			r.wait("good route", announced(good))
			p.update(attrs)
			r.wait("loss of the good route", gone(good))
		})
	}

	t.Run("two next hops", func(t *testing.T) {
		p.update(rawOrigin, rawPath(segment(2, 65001)), unicastReach(good, address(21), addr("fe80::1")))
		r.wait("route", announced(good))
		r.mu.Lock()
		defer r.mu.Unlock()
		if got := r.adjIn["raw"][good].NextHop; got != address(21) {
			t.Errorf("next hop %s", got)
		}
	})
	t.Run("refused prefixes", func(t *testing.T) {
		refused := []string{"2001:db8::/32", "2001:db8:1::/48", "fe80::/10", "ff0e::/16", "::1/128"}
		for _, s := range refused {
			p.update(rawOrigin, rawPath(segment(2, 65001)), unicastReach(prefix(s), address(21)))
		}
		p.update(rawOrigin, rawPath(segment(2, 65001)), unicastReach(marker, address(21)))
		r.wait("the route after them", func() bool { _, ok := r.unicast[marker]; return ok && announced(marker)() })
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.adjIn["raw"]) != 2 || len(r.unicast) != 2 {
			t.Errorf("announced: %v, best: %v", r.adjIn["raw"], r.unicast)
		}
	})
	t.Run("default route and our super-prefix", func(t *testing.T) {
		p.update(rawOrigin, rawPath(segment(2, 65001)), unicastReach(prefix("::/0"), address(21)))
		p.update(rawOrigin, rawPath(segment(2, 65001)), unicastReach(prefix("2001::/16"), address(21)))
		r.wait("default route", announced(prefix("::/0")))
		r.wait("super-prefix", announced(prefix("2001::/16")))
	})

	r.mu.Lock()
	downs := len(r.downs)
	r.mu.Unlock()
	if downs > 0 {
		t.Fatalf("session ended: %v", r.downs)
	}

	// Garbage closes the session and has no other effect.
	p.write(make([]byte, 64))
	r.wait("session end", func() bool { return !r.up["raw"] && len(r.adjIn["raw"]) == 0 && len(r.unicast) == 0 })
	again := dialRaw(t, r, 21, 65001)
	r.wait("session again", func() bool { return r.up["raw"] })
	again.update(rawOrigin, rawPath(segment(2, 65001)), unicastReach(good, address(21)))
	r.wait("route again", announced(good))
}

// TestNoRouteOutlivesSession: routes of a neighbor that requests graceful restart are not kept,
// since packets forwarded to a neighbor that is down would be lost.
func TestNoRouteOutlivesSession(t *testing.T) {
	r := newRouter(t, 22, 65000)
	r.must(r.AddNeighbor(Neighbor{
		Name: "raw", Address: address(23), ASN: 65000, Families: []Family{IPv6Unicast}, Passive: true,
	}))
	p := dialRaw(t, r, 23, 65000, gobgp.NewCapGracefulRestart(false, false, 4000,
		[]*gobgp.CapGracefulRestartTuple{gobgp.NewCapGracefulRestartTuple(gobgp.RF_IPv6_UC, true)}))
	r.wait("session", func() bool { return r.up["raw"] })
	good := prefix("2a00:1::/32")
	p.update(rawOrigin, rawPath(), rawLocalPref, unicastReach(good, address(23)))
	r.wait("route", func() bool { _, ok := r.unicast[good]; return ok })
	p.conn.Close()
	r.wait("end", func() bool { return !r.up["raw"] && len(r.unicast) == 0 && len(r.adjIn["raw"]) == 0 })
	if got := r.downs["raw"]; got != "connection lost" {
		t.Errorf("reason %q", got)
	}
}
