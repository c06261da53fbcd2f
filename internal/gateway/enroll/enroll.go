// Package enroll sends the messages of package join over UDP, for the gateway that invites and for
// the new peer. It decides nothing about peers, and changes nothing of the host but its own sockets.
package enroll

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/join"
	"github.com/tabane/tabane/internal/gateway/udp"
)

// resend is the time between two copies of a request, limit how long the answer is waited for, and
// linger how long it is repeated.
const resend, limit, linger = 500 * time.Millisecond, 15 * time.Second, 2 * time.Second

// Serve answers requests until a peer was accepted and has had time to get the answer, or the
// lifetime of the invitation has ended. If ctx ends, it returns its error. The caller closes at.
func Serve(ctx context.Context, at *net.UDPConn, host *join.Host, lifetime time.Duration) error {
	defer context.AfterFunc(ctx, func() { _ = at.SetReadDeadline(time.Unix(1, 0)) })()
	if err := at.SetReadDeadline(time.Now().Add(lifetime)); err != nil {
		return err
	}
	if err := udp.ReceiveDestination(at); err != nil {
		return err
	}
	b, to := make([]byte, join.MaxMessage+1), make([]byte, 64)
	for {
		n, length, _, from, err := at.ReadMsgUDPAddrPort(b, to)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded) && host.Done():
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("no site has joined within %.0f minutes: the line is void; see that UDP port %d is open, and run the command again", lifetime.Minutes(), at.LocalAddr().(*net.UDPAddr).Port)
		case err != nil:
			continue // an ICMP error about an answer
		}
		done := host.Done()
		answer, err := host.Answer(b[:n])
		if err != nil {
			continue // anybody can send a wrong one
		}
		// From the address that the request was sent to: NAT and firewalls of the site may drop an
		// answer from another one. A lost answer is requested again.
		_, _, _ = at.WriteMsgUDPAddrPort(answer, to[:length], from)
		if !done && host.Done() {
			if err := at.SetReadDeadline(time.Now().Add(linger)); err != nil {
				return err
			}
			if ctx.Err() != nil { // its deadline was replaced
				return ctx.Err()
			}
		}
	}
}

// Join sends a request to the addresses of an invitation, over the route to each and over each of
// the interfaces, because the line of the best default route may be dead. It returns the answer,
// which does not refuse. If ctx ends, it returns its error.
func Join(ctx context.Context, interfaces []string, i join.Invitation, own handshake.PrivateKey, q join.Request) (join.Answer, error) {
	e, message, err := join.Begin(i, own, q, rand.Reader)
	if err != nil {
		return join.Answer{}, err
	}
	var all []net.PacketConn
	var readers sync.WaitGroup
	defer readers.Wait()
	defer func() {
		for _, at := range all {
			at.Close()
		}
	}()
	received := make(chan []byte, 1)
	ended, end := context.WithTimeout(ctx, limit)
	defer end()
	for _, name := range append([]string{""}, interfaces...) {
		at, err := socketOn(ctx, name)
		if err != nil && name != "" {
			continue // it has gone meanwhile
		}
		if err != nil {
			return join.Answer{}, err
		}
		all = append(all, at)
		readers.Go(func() { forwardTo(ended, at, received) })
	}
	again := time.NewTicker(resend)
	defer again.Stop()
	for sending := true; ; {
		for _, at := range all {
			for _, to := range i.Addresses {
				if sending { // others may be reachable
					_, _ = at.WriteTo(message, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, i.Port)))
				}
			}
		}
		sending = false
		select {
		case <-again.C:
			sending = true
			continue
		case b := <-received:
			switch answer, err := e.Finish(b); {
			case errors.Is(err, join.ErrRefused):
				continue
			case err == nil && answer.Refused != "":
				return join.Answer{}, fmt.Errorf("the VPS refuses: %s (the line is still valid)", answer.Refused)
			default:
				return answer, err
			}
		case <-ended.Done():
		}
		break
	}
	if ctx.Err() != nil {
		return join.Answer{}, ctx.Err()
	}
	return join.Answer{}, fmt.Errorf("no answer from %v, UDP port %d: the line works once and for %.0f minutes, while tabane gateway init --vps or invite waits, and a firewall must let the port in; have the VPS print another line",
		i.Addresses, i.Port, join.Lifetime.Minutes())
}

// socketOn returns a UDP socket on an interface, on all if it is empty.
func socketOn(ctx context.Context, name string) (net.PacketConn, error) {
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if name == "" {
			return nil
		}
		if e := raw.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), name) }); e != nil {
			return e
		}
		return err
	}}
	return c.ListenPacket(ctx, "udp", ":0")
}

// forwardTo forwards what arrives until the socket is closed.
func forwardTo(ctx context.Context, at net.PacketConn, received chan<- []byte) {
	for b := make([]byte, join.MaxMessage+1); ; {
		n, _, err := at.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error about a request
		}
		select {
		case received <- slices.Clone(b[:n]):
		case <-ctx.Done():
			return
		}
	}
}
