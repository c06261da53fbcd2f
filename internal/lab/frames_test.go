package lab

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/afpacket"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/lab/labtest"
)

// framesSpec has a link of each kind between two hosts, by the name of their interfaces.
func framesSpec() *scenario.Spec {
	off := false
	s := &scenario.Spec{Name: "frames", Nodes: map[string]*scenario.Node{}, Links: map[string]*scenario.Link{
		"unlimited": {}, "slow": {Shape: scenario.Shape{Rate: 50e6}}, "off": {Offloads: &off}, "emulated": {Emulate: true},
		"tail": {Trailer: 4, Tagged: true}, "tailed": {Trailer: 4, Tagged: true, Emulate: true}, "veth": {Wire: scenario.WireVeth}, "switch": {Trailer: 4},
	}}
	// Frames of TCP without options are shorter than 60 bytes.
	for _, n := range []string{"a", "b", "c"} {
		s.Nodes[n] = &scenario.Node{Sysctls: map[string]string{"net.ipv4.tcp_timestamps": "0"}}
	}
	for name, l := range s.Links {
		l.Ends = []scenario.End{labtest.End("a", name, addressOn(name, "1")+"/24"), labtest.End("b", name, addressOn(name, "2")+"/24")}
	}
	s.Links["switch"].Ends = append(s.Links["switch"].Ends, labtest.End("c", "switch", addressOn("switch", "3")+"/24"))
	return s
}

var framesLinks = map[string]string{"unlimited": "1", "slow": "2", "off": "3", "emulated": "4", "tail": "5", "tailed": "6", "veth": "7", "switch": "8"}

func addressOn(link, host string) string { return "10." + framesLinks[link] + ".0." + host }

// exchangeBytes has so many bytes go back and forth over a link, one by one, and returns the
// lengths of the frames with them that the second host receives on the interface. The kernel drops
// frames with wrong checksums.
func exchangeBytes(t *testing.T, l *Lab, link string, n int) (lengths map[int]int) {
	t.Helper()
	address := addressOn(link, "2") + ":7"
	var listener net.Listener
	var frames *afpacket.Socket
	var c net.Conn
	if err := errors.Join(netns.Do(namespaceOf(l.Name(), "b"), func() (err error) {
		i, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		if frames, err = afpacket.Open(afpacket.Options{Interface: i.Index}); err != nil {
			return err
		}
		listener, err = net.Listen("tcp", address)
		return err
	}), netns.Do(namespaceOf(l.Name(), "a"), func() (err error) {
		c, err = net.DialTimeout("tcp", address, 10*time.Second)
		return err
	})); err != nil {
		t.Fatalf("%s: %v", link, err)
	}
	defer listener.Close()
	defer c.Close()
	s, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := errors.Join(c.SetDeadline(time.Now().Add(20*time.Second)), s.SetDeadline(time.Now().Add(20*time.Second))); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		for _, way := range [][2]net.Conn{{c, s}, {s, c}} {
			b := []byte{byte(i)}
			if _, err := way[0].Write(b); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(way[1], b); err != nil || b[0] != byte(i) {
				t.Fatalf("%s: byte %d: %v", link, i, err)
			}
		}
	}
	lengths = map[int]int{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // only those that wait
	if err := errors.Join(frames.Run(ctx, afpacket.Handler{Packet: func(p afpacket.Packet) error {
		const header = 14
		if p.Sent || len(p.Data) < header+20 || binary.BigEndian.Uint16(p.Data[12:]) != unix.ETH_P_IP {
			return nil
		}
		end := header + int(binary.BigEndian.Uint16(p.Data[header+2:]))
		if bytes.Contains(p.Data[end:], []byte{0}) {
			t.Errorf("%s: zeros behind a packet: %x", link, p.Data)
		}
		lengths[len(p.Data)]++
		return nil
	}}), frames.Close()); err != nil {
		t.Fatal(err)
	}
	return lengths
}

// TestFrames: links carry frames of Ethernet unless they are to be of veth, whatever the link is
// made of, also after an emulator was put into it.
func TestFrames(t *testing.T) {
	l := start(t, options(t, "frames", framesSpec()))
	check := func(link string, want int) {
		t.Helper()
		lengths := exchangeBytes(t, l, link, 20)
		if lengths[want] < 20 {
			t.Errorf("%s: frames by length are %v, want those with a byte of %d", link, lengths, want)
		}
		for n := range lengths {
			if want >= 60 && n < want {
				t.Errorf("%s: a frame of %d bytes", link, n)
			}
		}
	}
	for link, want := range map[string]int{
		"unlimited": 60, "slow": 60, "off": 60, "emulated": 60, "tail": 64, "tailed": 64, "switch": 64, "veth": 14 + 20 + 20 + 1,
	} {
		check(link, want)
	}
	for _, link := range []string{"unlimited", "slow", "tail", "veth"} {
		if err := l.Links().Set(link, scenario.Shape{Rate: 100e6, Delay: time.Millisecond}); err != nil {
			t.Fatal(err)
		}
	}
	check("unlimited", 60)
	check("slow", 60)
	check("tail", 64)
	check("veth", 14+20+20+1)
}
