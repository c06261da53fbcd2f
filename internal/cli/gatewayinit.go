package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/cli/setup"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/gateway/enroll"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/join"
	"github.com/tabane/tabane/internal/kernel/nft"
	"github.com/tabane/tabane/internal/role"
)

func (a *App) gatewayInitCommand(r role.Descriptor) *cobra.Command {
	var f setupFlags
	var vps bool
	var address []string
	c := &cobra.Command{
		Use:   "init --vps",
		Short: "Make this VPS the gateway of a site, and print a line to paste there",
		Long: `Init makes a key, switches forwarding on, and prints one line. At the site, paste it into tabane gateway join. The line is a secret that
works once, within ten minutes, while this command waits. Then init writes the configuration with the site's key and addresses, and
starts the gateway: as the package's unit, or as a process where systemd does not run. It prints what it will do, and asks.

IPv6 of the site is carried if this host has it, and leaves with the address of this host. UDP port 4790 has to be reachable, or the
one that --port names: networks that let only a few ports pass often let 443. The default route and the addresses of this host do not
change.

Where a public prefix of IPv6 is routed to this host, a DHCP client has got it or --prefix names it, each site gets a part of it: /60,
or /64 where it has less than 256 of those. Another site: tabane gateway invite.`,
		Example: `  tabane gateway init --vps
  tabane gateway init --vps --dry-run
  tabane gateway init --vps --address 203.0.113.7   # a VPS behind NAT
  tabane gateway init --vps --port 443              # for sites whose lines let only few ports pass`,
		Args: Arguments(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if !vps {
				return Usage(c, errors.New("give --vps: a site with several lines uses tabane gateway join"))
			}
			if f.port == 0 {
				return Invalid("--port", "0", "a UDP port from 1 to 65535")
			}
			return a.gatewayInit(c.Context(), r, &f, address)
		},
	}
	f.add(c)
	f.noLAN = true
	c.Flags().BoolVar(&vps, "vps", false, "set up a VPS, which a site reaches the Internet through")
	addressFlag(c, &address)
	c.Flags().Uint16Var(&f.port, "port", joinPort, "the UDP `port` of the tunnel")
	c.Flags().StringVar(&f.prefix, "prefix", "", "a public `prefix` of IPv6 that is routed to this host, for its sites")
	return c
}

func addressFlag(c *cobra.Command, address *[]string) {
	c.Flags().StringSliceVar(address, "address", nil, "an `address` that the site reaches this host at, if it is behind NAT; repeatable")
}

// parseAddresses returns the values of the flag address.
func parseAddresses(given []string) (list []netip.Addr, err error) {
	for _, text := range given {
		one, err := netip.ParseAddr(text)
		if err != nil {
			return nil, Invalid("--address", text, "an IP address")
		}
		list = append(list, one)
	}
	return list, nil
}

// publicAddresses returns those that a site reaches the host at.
func publicAddresses(h *setup.Host, what string, given []string) ([]netip.Addr, error) {
	const most = 4
	list, err := parseAddresses(given)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		list = h.Public(most)
	}
	if len(list) == 0 {
		return nil, &Failure{What: what, Why: errors.New("this host has no public address"), Do: "name the one that the site reaches it at: --address ADDRESS"}
	}
	return list[:min(len(list), most)], nil
}

func (a *App) gatewayInit(ctx context.Context, r role.Descriptor, f *setupFlags, address []string) error {
	const what = "set up VPS"
	if _, err := f.choice(); err != nil {
		return err // before what needs privileges
	}
	if _, err := parseAddresses(address); err != nil {
		return err
	}
	record, err := f.fresh(what)
	if err != nil {
		return err
	}
	if err := Require(what, r.Needs...); err != nil {
		return err
	}
	h, files, err := f.find(what)
	if err != nil {
		return err
	}
	addresses, err := publicAddresses(h, what, address)
	if err != nil {
		return err
	}
	peer := setup.Peer{Request: join.Request{Name: "site", IPv6: true}}
	if peer.Answer = h.Decide(peer.Request); peer.Answer.Refused != "" {
		return &Failure{What: what, Why: errors.New(peer.Answer.Refused)}
	}
	steps, err := setup.VPS(h, files, peer)
	if err != nil {
		return &Failure{What: what, Why: err}
	}
	lines := append([]string{"(the public key, the name, and the addresses of the site follow when it joins)"}, planned(steps)...)
	if why := h.WithoutIPv6(); why != "" {
		lines = append(lines, "("+notCarried(why)+")")
	} else {
		lines = append(lines, "(IPv6 of the site is carried, and masqueraded, unless the site keeps its own)")
		if h.Routed.IsValid() {
			lines = append(lines, fmt.Sprintf("(the site gets a part of %v, which is not masqueraded)", h.Routed))
		}
	}
	if h.Filtered {
		lines = append(lines, fmt.Sprintf("(its firewall drops packets of a gateway: port %d is opened while this command runs)", f.port))
	}
	if ok, err := a.confirm(ctx, f, what, lines); !ok {
		return err
	}
	ctx, stop := UntilHangup(ctx)
	defer stop()
	at, err := tunnelPort(what, f.port)
	if err != nil {
		return err
	}
	defer at.Close()
	return a.inside(ctx, what, record, func() error {
		if err := applyAll(record, steps[:before]); err != nil {
			return err
		}
		own, err := gateway.PrivateKey(files.Key())
		if err != nil {
			return err
		}
		invitation, err := join.Invite(own.Public(), f.port, addresses, rand.Reader)
		if err != nil {
			return err
		}
		if peer, err = a.awaitSite(ctx, h, at, own, invitation, func(key handshake.PublicKey, q join.Request) setup.Peer { return h.Accept(files, key, q) }); err != nil {
			return err
		}
		_ = at.Close() // the gateway opens it again
		if steps, err = setup.VPS(h, files, peer); err != nil {
			return err
		}
		fmt.Fprintf(a.Out, "%q has joined.\n", peer.Request.Name)
		if !peer.Answer.Own6.IsValid() {
			fmt.Fprintln(a.Out, notCarried(cmp.Or(h.WithoutIPv6(), "the site keeps its own")))
		}
		if err := applyAll(record, steps[before:]); err != nil {
			return err
		}
		return a.sendTest(ctx, role.Here(r.DefaultStatus()), daemonOf(record), peer)
	})
}

// tunnelPort returns a socket with the port of the tunnel, which another program may have.
func tunnelPort(what string, port uint16) (*net.UDPConn, error) {
	at, err := net.ListenUDP("udp", &net.UDPAddr{Port: int(port)})
	if err != nil {
		return nil, &Failure{What: what, Why: err, Do: fmt.Sprintf("stop what uses UDP port %d", port)}
	}
	return at, nil
}

// awaitSite prints an invitation, and waits until a site has joined.
func (a *App) awaitSite(ctx context.Context, h *setup.Host, at *net.UDPConn, own handshake.PrivateKey, i join.Invitation, accept func(handshake.PublicKey, join.Request) setup.Peer) (peer setup.Peer, err error) {
	fmt.Fprintf(a.Out, "Within %.0f minutes, at the site, run\n\n  tabane gateway join\n\nand paste this line there:\n\n  %s\n\nWaiting for the site ...\n", join.Lifetime.Minutes(), i.Text())
	host := join.NewHost(own, i, func(key handshake.PublicKey, q join.Request) join.Answer {
		if peer = accept(key, q); peer.Answer.Refused != "" {
			fmt.Fprintln(a.Out, "The site was refused: "+peer.Answer.Refused)
		}
		return peer.Answer
	}, rand.Reader)
	arriving := nft.Passage{Protocol: unix.IPPROTO_UDP, Port: uint16(at.LocalAddr().(*net.UDPAddr).Port)}
	var list []nft.Passage
	for _, l := range h.Lines {
		arriving.In = l.Name
		if arriving.Version = "ip"; len(l.Addresses) > 0 {
			list = append(list, arriving)
		}
		if arriving.Version = "ip6"; l.Internet6 {
			list = append(list, arriving)
		}
	}
	closed, err := a.openPort(list)
	if err == nil {
		err = enroll.Serve(ctx, at, host, join.Lifetime)
	}
	closed()
	if ctx.Err() != nil {
		err = ErrInterrupted
	}
	return peer, err
}
