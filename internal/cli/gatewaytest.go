package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/cli/setup"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/gateway/join"
	"github.com/tabane/tabane/internal/kernel/nft"
	"github.com/tabane/tabane/internal/role"
)

// sendTest waits for the site, and sends to its one connection for a few seconds.
func (a *App) sendTest(ctx context.Context, status netip.AddrPort, d *setup.Daemon, peer setup.Peer) error {
	closed, err := a.openPort([]nft.Passage{{Version: "ip", In: gateway.DefaultInterface, Protocol: unix.IPPROTO_TCP, Port: joinPort}})
	defer closed()
	if err != nil {
		return err
	}
	if up, err := a.awaitPeer(ctx, status, d, peer.Request.Name); !up {
		if err == nil {
			fmt.Fprintf(a.Out, "If join failed at the site: tabane gateway invite --replace %s\n", peer.Request.Name)
		}
		return err
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(peer.Answer.Gateway, joinPort)))
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.SetDeadline(time.Now().Add(testLimit)); err != nil {
		return err
	}
	if c, err := l.Accept(); err == nil {
		_ = c.SetDeadline(time.Now().Add(testTime))
		block := make([]byte, 1<<16)
		for err == nil {
			_, err = c.Write(block)
		}
		_ = c.Close()
	}
	fmt.Fprintln(a.Out, "The gateway runs. See: tabane status gateway")
	return nil
}

// receiveTest downloads from the VPS for a few seconds, and prints what each line has carried.
func (a *App) receiveTest(ctx context.Context, r role.Descriptor, record *setup.Record, answer join.Answer) error {
	status, from := role.Here(r.DefaultStatus()), answer.Gateway
	if up, err := a.awaitPeer(ctx, status, daemonOf(record), answer.Name); !up {
		return err
	}
	fmt.Fprintf(a.Out, "The tunnel is up. A download of %.0f s from the VPS:\n", testTime.Seconds())
	dial := net.Dialer{Timeout: time.Second}
	var c net.Conn
	var err error
	for range 20 {
		if c, err = dial.DialContext(ctx, "tcp", netip.AddrPortFrom(from, joinPort).String()); err == nil || ctx.Err() != nil {
			break
		}
		time.Sleep(250 * time.Millisecond)
	}
	if err != nil {
		fmt.Fprintf(a.Out, "  it did not start: %v\n", err)
		return ended(daemonOf(record))
	}
	defer c.Close()
	first, err := gatewayState(ctx, status)
	if err != nil {
		return err
	}
	begun := time.Now()
	_ = c.SetDeadline(begun.Add(2 * testTime))
	n, _ := io.Copy(io.Discard, c) // it ends when the VPS closes it
	took := time.Since(begun).Seconds()
	last, err := gatewayState(ctx, status)
	if err != nil {
		return err
	}
	rate := func(bytes uint64) string { return fmt.Sprintf("%.1f Mbit/s", float64(bytes)*8/took/1e6) }
	fmt.Fprintf(a.Out, "  %-16s %s\n", "in total", rate(uint64(n)))
	for i, p := range last.Paths {
		if i < len(first.Paths) && first.Paths[i].Path == p.Path {
			fmt.Fprintf(a.Out, "  %-16s %s, %s\n", p.Path, rate(p.ReceivedBytes-first.Paths[i].ReceivedBytes), p.State)
		}
	}
	fmt.Fprintln(a.Out, "See: tabane status gateway")
	return nil
}
