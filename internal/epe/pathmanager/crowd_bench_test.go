package pathmanager

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// newCrowdMachine returns a machine with connections of as many clients, each with subflows to two
// peers.
func newCrowdMachine(conns int) *managed {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(1, "::/0", RoutePresent)
	for i := range conns {
		b := [16]byte{0x20, 1, 0xd, 0xb8}
		binary.BigEndian.PutUint32(b[12:], uint32(i))
		m.connect(uint32(i+1), defaultAt, netip.AddrPortFrom(netip.AddrFrom16(b), 40000))
		m.work()
	}
	return m
}

// BenchmarkStatus counts what the status says of 100,000 connections.
func BenchmarkStatus(b *testing.B) {
	m := newCrowdMachine(100_000)
	for b.Loop() {
		if u := m.unjoined(m.now, accepts); u.Connections > 0 {
			b.Fatalf("%+v", u)
		}
	}
}

// BenchmarkReview applies a dump of the subflows of 100,000 connections, as once a minute.
func BenchmarkReview(b *testing.B) {
	m := newCrowdMachine(100_000)
	all := m.all()
	for b.Loop() {
		m.dump(m.now, false, all)
	}
}
