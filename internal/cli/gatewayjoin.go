package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli/setup"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/gateway/enroll"
	"github.com/tabane/tabane/internal/gateway/join"
	"github.com/tabane/tabane/internal/role"
)

// invitation returns the line of an invitation: the argument, or what is pasted. An argument is
// shown by ps and kept by the shell's history.
func (a *App) invitation(ctx context.Context, what string, r role.Descriptor, args []string) (i join.Invitation, err error) {
	if len(args) > 0 {
		i, err = join.Parse(args[0])
	}
	if err == nil {
		err = Require(what, r.Needs...) // before it asks
	}
	if err == nil && len(args) == 0 {
		i, err = a.pasted(ctx)
	}
	var failed *Failure
	if err != nil && !errors.As(err, &failed) {
		err = &Failure{What: what, Why: err}
	}
	return i, err
}

// pasted asks for the line of an invitation.
func (a *App) pasted(ctx context.Context) (join.Invitation, error) {
	fmt.Fprint(a.Out, "Paste the line that tabane gateway init --vps printed: ")
	line, err := readLine(ctx, os.Stdin)
	if err != nil {
		fmt.Fprintln(a.Out)
	}
	if errors.Is(err, ErrInterrupted) {
		return join.Invitation{}, err
	}
	if err != nil && (!errors.Is(err, io.EOF) || line == "") {
		return join.Invitation{}, fmt.Errorf("read invitation from standard input: %w; paste the line, or give it as an argument", err)
	}
	return join.Parse(line)
}

func (a *App) gatewayJoinCommand(r role.Descriptor) *cobra.Command {
	var f setupFlags
	c := &cobra.Command{
		Use:   "join ['tabane3:...']",
		Short: "Have this site use all its lines, through the VPS that printed the line",
		Long: `Join finds the lines of this host (interfaces with a default route, of IPv4 or of IPv6 alone, and the far ends of PPP) and its LAN
(other interfaces with a private address), makes a key, joins the VPS, writes the configuration, starts the gateway, and shows what a short download
carries over each line. It prints what it will do, and asks. Connections from elsewhere to this host, such as a login by SSH, get a
rule of their own, so that they stay on their line.

IPv6 goes through the VPS as well if that has it, unless the LAN has public addresses of IPv6: these, and all of it with --no-ipv6, go
on over their line without the tunnel. Join says which. To give hosts addresses of IPv6 is not its task; it prints which these are.

A LAN whose addresses another site has is refused; with --hide-lan its hosts have the site's address in the tunnel, and nobody connects
to them from there.

It reads the VPS's line from the terminal or standard input. As an argument, other users of the host could read that secret.`,
		Example: `  tabane gateway join
  tabane gateway join --line eth1 --line wwan0=192.0.2.1 --lan eth0
  tabane gateway join --yes < line`,
		Args: Arguments(0, 1, "at most the line that tabane gateway init --vps printed"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.gatewayJoin(c.Context(), r, &f, args)
		},
	}
	f.add(c)
	c.Flags().StringSliceVar(&f.lan, "lan", nil, "an `interface` of the LAN, instead of those that are found; repeatable")
	CompleteFlag(c, "lan", interfaceNames)
	c.Flags().BoolVar(&f.noLAN, "no-lan", false, "there is no LAN: this host alone uses the lines")
	c.Flags().BoolVar(&f.hideLAN, "hide-lan", false, "masquerade IPv4 of the LAN, whose addresses another site has, too: nobody connects to its hosts")
	return c
}

func (a *App) gatewayJoin(ctx context.Context, r role.Descriptor, f *setupFlags, args []string) error {
	const what = "join VPS"
	record, err := f.fresh(what)
	if err != nil {
		return err
	}
	if _, err := f.choice(); err != nil {
		return err // before it asks
	}
	invitation, err := a.invitation(ctx, what, r, args)
	if err != nil {
		return err
	}
	h, files, err := f.find(what)
	if err != nil {
		return err
	}
	invitation.Addresses = h.Reach(invitation.Addresses)
	peer := setup.Peer{Answer: unknown, At: invitation}
	steps, err := setup.Site(h, files, peer)
	if err != nil {
		return &Failure{What: what, Why: err}
	}
	lines := planned(steps)
	if why := h.KeepsIPv6(); why != "" {
		lines = append(lines, "("+notCarried(why)+")")
	} else {
		lines = append(lines, "(the VPS gives the addresses of the tunnel; without IPv6 there, that is left out, and goes on over the lines without the tunnel)")
	}
	lines = append(lines, h.SharedLines()...)
	if ok, err := a.confirm(ctx, f, what, lines); !ok {
		return err
	}
	at, err := tunnelPort(what, joinPort)
	if err != nil {
		return err
	}
	_ = at.Close() // the gateway opens it again
	ctx, stop := UntilHangup(ctx)
	defer stop()
	return a.inside(ctx, what, record, func() error {
		if err := applyAll(record, steps[:before]); err != nil {
			return err
		}
		own, err := gateway.PrivateKey(files.Key())
		if err != nil {
			return err
		}
		var lines []string
		for _, l := range h.Lines {
			lines = append(lines, l.Name)
		}
		if peer.Answer, err = enroll.Join(ctx, lines, invitation, own, h.Request()); ctx.Err() != nil {
			return ErrInterrupted
		} else if err != nil {
			return err
		}
		if steps, err = setup.Site(h, files, peer); err != nil {
			return err
		}
		if err = applyAll(record, steps[before:]); err == nil {
			a.sayIPv6(h, peer.Answer)
			err = a.receiveTest(ctx, r, record, peer.Answer)
		}
		if err != nil {
			err = fmt.Errorf("%w; the VPS has this site as a peer now: tabane gateway invite --replace NAME there prints another line", err)
		}
		return err
	})
}

// sayIPv6 says at the site what has become of IPv6, and what is to be done for its hosts.
func (a *App) sayIPv6(h *setup.Host, answer join.Answer) {
	why := h.KeepsIPv6()
	if !answer.Own6.IsValid() {
		why = cmp.Or(why, "the VPS does not carry it")
	}
	if why != "" {
		fmt.Fprintln(a.Out, notCarried(why))
		return
	}
	fmt.Fprintln(a.Out, "IPv6 of this host goes through the VPS.")
	if answer.Prefix6.IsValid() {
		fmt.Fprintf(a.Out, "Its LAN has the public network %v, which the VPS lets nobody connect to from elsewhere.\n", answer.Prefix6)
	}
	for i, p := range h.Lacking(answer.Prefix6) {
		fmt.Fprintf(a.Out, "For hosts of the LAN: give %s the address %v, and announce %v there (docs/gateway-operations.md, IPv6).\n", h.LAN[i].Name, p, p.Masked())
	}
}

// daemonOf returns the daemon among the steps, nil without one.
func daemonOf(r *setup.Record) *setup.Daemon {
	for _, s := range r.Steps() {
		if s.Daemon != nil {
			return s.Daemon
		}
	}
	return nil
}

// gatewayState reads the status of the daemon of this host.
func gatewayState(ctx context.Context, at netip.AddrPort) (s gateway.Status, err error) {
	body, err := ask(ctx, at, "/status")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(body, &s)
}

// ended returns an error with the last message of a daemon that was set up here as a process and has
// ended.
func ended(d *setup.Daemon) error {
	if d == nil || d.Unit || d.Running() {
		return nil
	}
	b, _ := os.ReadFile(d.Where())
	text := strings.TrimSpace(string(b))
	return fmt.Errorf("the gateway has ended, its last message: %s", OneLine(text[strings.LastIndexByte(text, '\n')+1:]))
}

// awaitPeer waits until the session with a peer is up. d is the daemon, if it was set up here.
func (a *App) awaitPeer(ctx context.Context, at netip.AddrPort, d *setup.Daemon, name string) (bool, error) {
	for end := time.Now().Add(upLimit); time.Now().Before(end); {
		if s, err := gatewayState(ctx, at); err == nil && slices.ContainsFunc(s.Peers, func(p gateway.PeerStatus) bool { return p.Name == name && p.Up }) {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, ErrInterrupted
		case <-time.After(100 * time.Millisecond):
		}
		if err := ended(d); err != nil {
			return false, err
		}
	}
	where := "its log"
	if d != nil {
		where = d.Where()
	}
	fmt.Fprintf(a.Out, "The gateway runs, and the other one has not answered for %.0f s. See: tabane status gateway, and %s\n", upLimit.Seconds(), where)
	return false, nil
}
