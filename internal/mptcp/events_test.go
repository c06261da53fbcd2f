package mptcp

import (
	"encoding/binary"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/testkit/accessor"
)

func attrs(fill func(ae *netlink.AttributeEncoder)) []byte {
	ae := netlink.NewAttributeEncoder()
	fill(ae)
	b, err := ae.Encode()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return b
}

func bigEndian(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }

// ends encodes the addresses of most events; the IPv4 addresses are IPv4-mapped, as for dual-stack
// sockets.
func ends(ae *netlink.AttributeEncoder) {
	ae.Uint32(eventAttrToken, 0xcafe)
	ae.Bytes(eventAttrSource6, netip.MustParseAddr("::ffff:192.0.2.1").AsSlice())
	ae.Bytes(eventAttrDest4, netip.MustParseAddr("192.0.2.2").AsSlice())
	ae.Bytes(eventAttrSourcePort, bigEndian(80))
	ae.Bytes(eventAttrDestPort, bigEndian(4711))
}

func TestDecodeEvent(t *testing.T) {
	local, remote := netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("192.0.2.2:4711")
	joined := SubflowEvent{Token: 0xcafe, Local: local, Remote: remote, LocalID: 3, RemoteID: 4, Backup: true, Interface: 9}
	sub := attrs(func(ae *netlink.AttributeEncoder) {
		ends(ae)
		ae.Uint8(eventAttrLocalID, 3)
		ae.Uint8(eventAttrRemoteID, 4)
		ae.Uint8(eventAttrBackup, 1)
		ae.Int32(eventAttrInterface, 9)
	})
	reset := joined
	reset.Error, reset.ResetReason, reset.ResetFlags, reset.WasReset = unix.ECONNRESET, 5, 1, true
	for _, tt := range []struct {
		name    string
		command uint8
		b       []byte
		want    Event
	}{
		{"created, flag of 6.17", eventCreated, attrs(func(ae *netlink.AttributeEncoder) { ends(ae); ae.Uint16(eventAttrFlags, 3) }), Created{0xcafe, local, remote, true, true}},
		{"established, attribute of before", eventEstablished, attrs(func(ae *netlink.AttributeEncoder) { ends(ae); ae.Uint8(eventAttrServerSide, 1) }), Established{0xcafe, local, remote, true, false}},
		{"closed", eventClosed, attrs(ends), Closed{0xcafe}},
		{"announced", eventAnnounced, attrs(func(ae *netlink.AttributeEncoder) { ends(ae); ae.Uint8(eventAttrRemoteID, 4) }), Announced{0xcafe, 4, remote}},
		{"removed", eventRemoved, attrs(func(ae *netlink.AttributeEncoder) { ends(ae); ae.Uint8(eventAttrRemoteID, 4) }), Removed{0xcafe, 4}},
		{"subflow established", eventSubEstablished, sub, SubEstablished(joined)},
		{"subflow closed", eventSubClosed, append(sub[:len(sub):len(sub)], attrs(func(ae *netlink.AttributeEncoder) {
			ae.Uint8(eventAttrError, uint8(unix.ECONNRESET))
			ae.Uint32(eventAttrResetReason, 5)
			ae.Uint32(eventAttrResetFlags, 1)
		})...), SubClosed(reset)},
		{"subflow priority", eventSubPriority, sub, SubPriority(joined)},
		{"listener created", eventListenerCreated, sub, ListenerCreated{local}},
		{"listener closed", eventListenerClosed, sub, ListenerClosed{local}},
		{"of a later kernel", 200, nil, nil},
	} {
		got, err := decodeEvent(tt.command, tt.b)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestDecodeEventRefuses(t *testing.T) {
	for _, tt := range []struct {
		name, says string
		command    uint8
		b          []byte
	}{
		{"nothing", "attribute 1 missing", eventClosed, nil},
		{"no addresses", "missing", eventCreated, attrs(func(ae *netlink.AttributeEncoder) { ae.Uint32(eventAttrToken, 1) })},
		{"announced without ID", "attribute 4 missing", eventAnnounced, attrs(ends)},
		{"removed without ID", "attribute 4 missing", eventRemoved, attrs(ends)},
		{"long port", "4 bytes, want 2", eventCreated, attrs(func(ae *netlink.AttributeEncoder) { ae.Uint32(eventAttrSourcePort, 1) })},
		{"short address", "4 bytes, want 16", eventCreated, attrs(func(ae *netlink.AttributeEncoder) { ae.Uint32(eventAttrSource6, 1) })},
		{"cut short", "", eventClosed, []byte{0xff, 0, 1, 0}},
		{"listener without address", "address missing", eventListenerClosed, attrs(func(ae *netlink.AttributeEncoder) { ae.Bytes(eventAttrSourcePort, bigEndian(80)) })},
	} {
		if e, err := decodeEvent(tt.command, tt.b); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %+v, %v, want an error that says %q", tt.name, e, err, tt.says)
		}
	}
}

func FuzzDecodeEvent(f *testing.F) {
	for _, c := range []uint8{eventCreated, eventClosed, eventAnnounced, eventSubClosed, eventListenerCreated} {
		f.Add(c, attrs(ends))
	}
	f.Fuzz(func(t *testing.T, command uint8, b []byte) {
		e, err := decodeEvent(command, b)
		if err != nil {
			return
		}
		accessor.Call(t, e)
		var at []netip.AddrPort
		switch e := e.(type) {
		case SubEstablished:
			at = []netip.AddrPort{e.Local, e.Remote}
		case Created:
			at = []netip.AddrPort{e.Local, e.Remote}
		case Announced:
			at = []netip.AddrPort{e.Address}
		}
		for _, a := range at {
			if !a.IsValid() || a.Addr().Is4In6() {
				t.Errorf("%+v has the address %v", e, a)
			}
		}
	})
}

// socketAnswer returns the sock_diag answer for a socket that is a subflow.
func socketAnswer() []byte {
	b := make([]byte, diagMessageLen)
	b[0] = byte(IPv6)
	binary.BigEndian.PutUint16(b[4:], 80)
	binary.BigEndian.PutUint16(b[6:], 4711)
	copy(b[8:], netip.MustParseAddr("2001:db8::1").AsSlice())
	copy(b[24:], netip.MustParseAddr("2001:db8::2").AsSlice())
	info := make([]byte, 248)
	native := binary.NativeEndian
	native.PutUint32(b[diagOffsetQueued:], 200_000)
	native.PutUint32(info[24:], 12)
	native.PutUint32(info[68:], 30000)
	native.PutUint32(info[72:], 2000)
	native.PutUint64(info[120:], 1<<40)
	native.PutUint32(info[192:], 99)
	return append(b, attrs(func(ae *netlink.AttributeEncoder) {
		ae.Bytes(diagAttrInfo, info)
		ae.Nested(diagAttrULP, func(ae *netlink.AttributeEncoder) error {
			ae.String(1, "mptcp")
			ae.Nested(diagAttrMPTCP, func(ae *netlink.AttributeEncoder) error {
				ae.Uint32(subflowTokenLoc, 0xcafe)
				ae.Uint32(subflowFlags, 1<<3|subflowFlagBackupLoc)
				ae.Uint8(subflowIDLocal, 5)
				ae.Uint8(subflowIDRemote, 6)
				return nil
			})
			return nil
		})
	})...)
}

func TestDecodeSubflow(t *testing.T) {
	want := Subflow{
		Token: 0xcafe, Local: netip.MustParseAddrPort("[2001:db8::1]:80"), Remote: netip.MustParseAddrPort("[2001:db8::2]:4711"),
		LocalID: 5, RemoteID: 6, Joined: true, Active: true, BackupHere: true,
		InFlight: 12, Queued: 200_000, Acked: 1 << 40, Delivered: 99, RTT: 30 * time.Millisecond, Deviation: 2 * time.Millisecond,
	}
	b := socketAnswer()
	got, ok, err := decodeSubflow(b)
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); err != nil || !ok || diff != "" {
		t.Errorf("%t, %v, (-want +got):\n%s", ok, err, diff)
	}
	if _, ok, err := decodeSubflow(b[:diagMessageLen]); ok || err != nil {
		t.Errorf("a socket of plain TCP: %t, %v", ok, err)
	}
	for n := range diagMessageLen {
		if _, _, err := decodeSubflow(b[:n]); err == nil {
			t.Fatalf("%d bytes are accepted", n)
		}
	}
}

func FuzzDiagAnswer(f *testing.F) {
	message := func(kind uint16, body []byte) []byte {
		b := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+len(body))
		binary.NativeEndian.PutUint32(b, uint32(unix.NLMSG_HDRLEN+len(body)))
		binary.NativeEndian.PutUint16(b[4:], kind)
		return append(b, body...)
	}
	f.Add(message(unix.SOCK_DIAG_BY_FAMILY, socketAnswer()))
	f.Add(message(unix.NLMSG_DONE, make([]byte, 4)))
	f.Add(message(unix.NLMSG_ERROR, []byte{0xff, 0xff, 0xff, 0xff}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = eachMessage(b, 0, each(func(s Subflow) {
			if s.Token == 0 || !s.Local.IsValid() {
				t.Errorf("subflow %+v", s)
			}
		}))
	})
}

func TestOverrun(t *testing.T) {
	p := newPair(t)
	if err := p.events.genl.SetReadBuffer(1); err != nil { // raised to the minimum
		t.Fatal(err)
	}
	for range 20 {
		p.connect()
	}
	if lost := expect[Overrun](p); lost.Reason == nil {
		t.Error("overrun without a reason")
	}
	// Events are received again after the overrun.
	if err := p.events.genl.SetReadBuffer(1 << 20); err != nil {
		t.Fatal(err)
	}
	p.connect()
	expect[Established](p)
}

func TestNotSubscribed(t *testing.T) {
	p := newPair(t)
	if err := p.events.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.events.Receive(); err == nil || !strings.Contains(err.Error(), os.ErrClosed.Error()) {
		t.Errorf("receive after close: %v", err)
	}
	var err error
	if err = netns.Do(p.server, func() (err error) { p.events, err = Subscribe(); return err }); err != nil {
		t.Fatal(err)
	}
}
