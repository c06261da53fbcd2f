package bgp

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/tabane/tabane/internal/vpn"
)

type extended = gobgp.ExtendedCommunityInterface

func discard() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// FuzzPrefixSID decodes arbitrary Prefix-SID attributes and label fields.
func FuzzPrefixSID(f *testing.F) {
	for _, c := range prefixSIDCases {
		for _, a := range c.attrs {
			if a[1] == byte(gobgp.BGP_ATTR_TYPE_PREFIX_SID) {
				f.Add(a, uint32(c.label[0])<<16|uint32(c.label[1])<<8|uint32(c.label[2]))
			}
		}
	}
	rd, err := vpn.Parse("65000:1")
	if err != nil {
		f.Fatal(err)
	}
	nativeRD, err := distinguisher(rd)
	if err != nil {
		f.Fatal(err)
	}
	rt, err := target(rd)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte, label uint32) {
		attr := &gobgp.PathAttributePrefixSID{}
		if err := attr.DecodeFromBytes(raw); err != nil {
			attr = nil
		}
		p := prefix("2a00::/32")
		nlri, err := gobgp.NewLabeledVPNIPAddrPrefix(p, gobgp.MPLSLabelStack{Labels: []uint32{label % (1 << 24)}}, nativeRD)
		if err != nil {
			t.Fatal(err)
		}
		reach, err := gobgp.NewPathAttributeMpReachNLRI(gobgp.RF_IPv6_VPN, []gobgp.PathNLRI{{NLRI: nlri}}, addr("fd00::1"))
		if err != nil {
			t.Fatal(err)
		}
		path := &apiutil.Path{Family: gobgp.RF_IPv6_VPN, Nlri: nlri, PeerAddress: addr("fd00::2"),
			Attrs: []gobgp.PathAttributeInterface{reach, gobgp.NewPathAttributeExtendedCommunities([]extended{rt})}}
		if attr != nil {
			path.Attrs = append(path.Attrs, attr)
		}
		v, ok := readVPN(path)
		if !ok || v.RD != rd || v.Prefix != p {
			t.Fatalf("read as %+v, %t", v, ok)
		}
		if v.Rejected != nil {
			if r := (*RejectedError)(nil); !errors.As(v.Rejected, &r) || r.Reason == "" || v.SID.IsValid() {
				t.Fatalf("rejected as %+v", v)
			}
			return
		}
		if !v.SID.Is6() || v.SID.Is4In6() || !v.SID.IsGlobalUnicast() {
			t.Fatalf("accepted sid %s", v.SID)
		}
		if err := v.Structure.Check(); err != nil {
			t.Fatalf("accepted %s", err)
		}
		if err := v.Structure.CheckSID(v.SID); err != nil {
			t.Fatalf("accepted %s", err)
		}
		// An accepted route can be advertised again, and decodes to the same values.
		again := VPNRoute{RD: v.RD, Prefix: v.Prefix, NextHop: v.NextHop, RTs: v.RTs, SID: v.SID, Structure: v.Structure, Behavior: v.Behavior}
		sent, err := again.path(&sidMemo{})
		if err != nil {
			t.Fatalf("cannot say %+v again: %v", v, err)
		}
		sent.PeerAddress = path.PeerAddress
		back, ok := readVPN(sent)
		if !ok || back.Rejected != nil || back.SID != v.SID || back.Behavior != v.Behavior {
			t.Fatalf("said %+v, understood %+v", v, back)
		}
	})
}

// FuzzUpdate decodes whole messages: no message that GoBGP accepts may cause a panic.
func FuzzUpdate(f *testing.F) {
	for _, c := range prefixSIDCases {
		var body []byte
		for _, a := range append([][]byte{rawOrigin, rawPath(segment(2, 65001)), rawLocalPref}, c.attrs...) {
			body = append(body, a...)
		}
		f.Add(append(body, vpnReach(prefix("2a00::/32"), c.label...)...))
	}
	f.Add(unicastReach(prefix("2a00::/32"), addr("fd00::1"), addr("fe80::1")))
	f.Fuzz(func(t *testing.T, attrs []byte) {
		if len(attrs) > 4000 {
			return
		}
		body := append([]byte{0, 0}, be16(len(attrs))...)
		header := &gobgp.BGPHeader{Type: gobgp.BGP_MSG_UPDATE, Len: uint16(gobgp.BGP_HEADER_LENGTH + len(body) + len(attrs))}
		msg, err := gobgp.ParseBGPBody(header, append(body, attrs...))
		if msg == nil {
			return
		}
		// As after attributes were discarded.
		_ = err
		update, ok := msg.Body.(*gobgp.BGPUpdate)
		if !ok {
			return
		}
		for _, a := range update.PathAttributes {
			reach, ok := a.(*gobgp.PathAttributeMpReachNLRI)
			if !ok {
				continue
			}
			for _, n := range reach.Value {
				p := &apiutil.Path{Family: gobgp.NewFamily(reach.AFI, reach.SAFI), Nlri: n.NLRI, Attrs: update.PathAttributes, PeerAddress: netip.MustParseAddr("fd00::2")}
				if u, ok := readUnicast(p, "eth0"); ok && u.Rejected == nil && !u.NextHop.Is6() {
					t.Fatalf("accepted %+v", u)
				}
				if v, ok := readVPN(p); ok && v.Rejected == nil && (!v.SID.IsValid() || len(v.RTs) == 0) {
					t.Fatalf("accepted %+v", v)
				}
			}
		}
	})
}
