package linkstate

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/tabane/tabane/internal/bgp/session"
	"github.com/tabane/tabane/internal/bgp/srv6"
)

var segment = Segment{
	SID: netip.MustParseAddr("fc00:1:1::"), Structure: srv6.Structure{Block: 16, Node: 16, Function: 16}, Behavior: 18,
	PeerASN: 65001, PeerID: netip.MustParseAddr("10.1.0.1"),
}

// decode returns what GoBGP makes of an UPDATE.
func decode(t *testing.T, b []byte) *gobgp.BGPUpdate {
	t.Helper()
	m, err := gobgp.ParseBGPMessage(b)
	if err != nil {
		t.Fatal(err)
	}
	again, err := m.Serialize()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again, b) {
		t.Errorf("GoBGP encodes it as\n%x, not\n%x", again, b)
	}
	return m.Body.(*gobgp.BGPUpdate)
}

// check compares an UPDATE that announces the segment with it.
func check(t *testing.T, b []byte) {
	t.Helper()
	var nlri *gobgp.LsSrv6SIDNLRI
	behavior, peer, structure := false, false, false
	for _, a := range decode(t, b).PathAttributes {
		switch a := a.(type) {
		case *gobgp.PathAttributeMpReachNLRI:
			if a.AFI != gobgp.AFI_LS || a.SAFI != gobgp.SAFI_LS || len(a.Value) != 1 {
				t.Fatalf("%+v", a)
			}
			ls := a.Value[0].NLRI.(*gobgp.LsAddrPrefix)
			if ls.Type != gobgp.LS_NLRI_TYPE_SRV6_SID {
				t.Fatalf("type %d", ls.Type)
			}
			nlri = ls.NLRI.(*gobgp.LsSrv6SIDNLRI)
		case *gobgp.PathAttributeLs:
			for _, tlv := range a.TLVs {
				switch v := tlv.(type) {
				case *gobgp.LsTLVSrv6EndpointBehavior:
					behavior = v.EndpointBehavior == segment.Behavior && v.Flags == 0
				case *gobgp.LsTLVSrv6BgpPeerNodeSID:
					peer = v.PeerASNumber == segment.PeerASN && v.PeerBgpID == binary.BigEndian.Uint32(segment.PeerID.AsSlice()) && v.Flags == 0
				case *gobgp.LsTLVSrv6SIDStructure:
					structure = v.LocalBlock == 16 && v.LocalNode == 16 && v.LocalFunc == 16 && v.LocalArg == 0
				}
			}
		}
	}
	if nlri == nil || !behavior || !peer || !structure {
		t.Fatalf("NLRI %v, behavior %t, peer %t, structure %t", nlri, behavior, peer, structure)
	}
	node := nlri.LocalNodeDesc.(*gobgp.LsTLVNodeDescriptor).Extract()
	sid := nlri.Srv6SIDInfo.(*gobgp.LsTLVSrv6SIDInfo)
	if nlri.ProtocolID != gobgp.LS_PROTOCOL_BGP || node.Asn != 65000 || node.BGPRouterID.String() != "10.0.0.1" || len(sid.SIDs) != 1 || sid.SIDs[0].String() != segment.SID.String() {
		t.Errorf("protocol %d, node %+v, SIDs %v", nlri.ProtocolID, node, sid.SIDs)
	}
}

func TestMessages(t *testing.T) {
	for _, peerASN := range []uint32{65000, 64999} {
		s := speaker{asn: 65000, peerASN: peerASN, id: netip.MustParseAddr("10.0.0.1"), nextHop: netip.MustParseAddr("2001:db8:1::1")}
		b := s.announce(nil, segment)
		check(t, b)
		internal := false
		for _, a := range decode(t, b).PathAttributes {
			_, has := a.(*gobgp.PathAttributeLocalPref)
			internal = internal || has
		}
		if internal != (peerASN == 65000) {
			t.Errorf("LOCAL_PREF to AS %d: %t", peerASN, internal)
		}
		attrs := decode(t, s.withdraw(nil, segment.SID)).PathAttributes
		if len(attrs) != 1 || len(attrs[0].(*gobgp.PathAttributeMpUnreachNLRI).Value) != 1 {
			t.Errorf("withdrawal: %v", attrs)
		}
	}
	s := speaker{asn: 65000, peerASN: 65000, id: netip.MustParseAddr("10.0.0.1"), nextHop: netip.MustParseAddr("192.0.2.1")}
	unknown := segment
	unknown.PeerID = netip.Addr{}
	decode(t, s.announce(nil, unknown))
}

// TestTwoOctets: what does not fit into two octets is in AS4_PATH.
func TestTwoOctets(t *testing.T) {
	for asn, want := range map[uint32][]byte{
		65000:      {4, 2, 1, 0xfd, 0xe8},
		4200000000: {4, 2, 1, 0x5b, 0xa0, 0xc0, 17, 6, 2, 1, 0xfa, 0x56, 0xea, 0x00},
	} {
		s := speaker{asn: asn, peerASN: 64999, twoOctets: true}
		if got := s.asPath(nil); !bytes.Equal(got, want) {
			t.Errorf("AS %d: %x, want %x", asn, got, want)
		}
	}
}

// TestExporter has a controller that GoBGP's messages are from.
func TestExporter(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e, err := New([]session.Config{{
		Remote: l.Addr().(*net.TCPAddr).AddrPort(), Local: netip.MustParseAddr("127.0.0.1"), LocalASN: 65000, RemoteASN: 65000, RouterID: netip.MustParseAddr("10.0.0.1"),
		HoldTime: 90 * time.Second, ConnectRetry: time.Second, Log: slog.New(slog.DiscardHandler),
	}})
	if err != nil {
		t.Fatal(err)
	}
	e.Set([]Segment{segment})
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	defer e.Stop()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	open, err := gobgp.NewBGPOpenMessage(65000, 90, netip.MustParseAddr("10.0.0.9"), []gobgp.OptionParameterInterface{
		gobgp.NewOptionParameterCapability([]gobgp.ParameterCapabilityInterface{gobgp.NewCapMultiProtocol(gobgp.RF_LS), gobgp.NewCapFourOctetASNumber(65000)}),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*gobgp.BGPMessage{open, gobgp.NewBGPKeepAliveMessage()} {
		b, err := m.Serialize()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	next := func() []byte {
		t.Helper()
		for {
			b := make([]byte, gobgp.BGP_HEADER_LENGTH)
			if _, err := readFull(c, b); err != nil {
				t.Fatal(err)
			}
			body := make([]byte, int(b[16])<<8+int(b[17])-len(b))
			if _, err := readFull(c, body); err != nil {
				t.Fatal(err)
			}
			if b[18] == gobgp.BGP_MSG_UPDATE {
				return append(b, body...)
			}
		}
	}
	check(t, next())
	e.Set(nil)
	if attrs := decode(t, next()).PathAttributes; len(attrs) != 1 {
		t.Errorf("withdrawal: %v", attrs)
	}
	e.Set([]Segment{segment})
	check(t, next())
	if s := e.Status(); len(s) != 1 || !s[0].Up || s[0].Segments != 1 {
		t.Errorf("%+v", s)
	}
}

func readFull(c net.Conn, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = c.Read(b[n:])
		n += m
	}
	return n, err
}
