package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

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

const (
	// joinPort is the UDP port of the tunnel, and of the exchange before it, unless another one is
	// named. The TCP port of the speed test has the same number.
	joinPort = 4790
	// upLimit is how long the tunnel may take to come up, testLimit how long the VPS waits for the
	// speed test after that, and testTime how long it lasts.
	upLimit, testLimit, testTime = 30 * time.Second, 30 * time.Second, 3 * time.Second
)

// setupFlags are the flags of the commands that set a gateway up.
type setupFlags struct {
	dir         string
	yes, dryRun bool
	lines, lan  []string
	noLAN       bool
	hideLAN     bool
	noIPv6      bool
	// prefix is a public prefix that is routed to the host.
	prefix string
	// port is the UDP port of the tunnel at a VPS.
	port uint16
}

func (f *setupFlags) add(c *cobra.Command) {
	f.addCommon(c)
	c.Flags().StringSliceVar(&f.lines, "line", nil, "use this line, `INTERFACE or INTERFACE=ROUTER`, instead of those that are found; repeatable")
	c.Flags().BoolVar(&f.noIPv6, "no-ipv6", false, "leave IPv6 as it is, without the tunnel")
	CompleteFlag(c, "line", interfaceNames)
}

func (f *setupFlags) addCommon(c *cobra.Command) {
	c.Flags().StringVar(&f.dir, "dir", setup.DefaultDir, "`directory` of the key, the configuration and the record of the setup")
	c.Flags().BoolVar(&f.yes, "yes", false, "do not ask")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "print what would be done, and do nothing")
}

// fresh returns the empty record of a host that has no gateway yet.
func (f *setupFlags) fresh(what string) (*setup.Record, error) {
	dir, err := filepath.Abs(f.dir)
	if err != nil {
		return nil, &Failure{What: what, Why: err}
	}
	f.dir = dir
	record, err := setup.NewRecord(setup.Files{Dir: dir}.Record())
	if err == nil && !f.dryRun {
		err = gateway.Running()
	}
	if err != nil {
		return nil, &Failure{What: what, Why: err}
	}
	return record, nil
}

// UntilHangup returns a context that ends also when the terminal is gone, as at the end of a login
// that breaks: what was begun is undone then.
func UntilHangup(ctx context.Context) (context.Context, context.CancelFunc) {
	if signal.Ignored(syscall.SIGHUP) { // nohup
		return context.WithCancel(ctx)
	}
	return signal.NotifyContext(ctx, syscall.SIGHUP)
}

// choice returns what the flags choose.
func (f *setupFlags) choice() (setup.Choice, error) {
	choice := setup.Choice{LAN: f.lan, NoLAN: f.noLAN, HideLAN: f.hideLAN, NoIPv6: f.noIPv6, Port: f.port}
	for _, text := range f.lines {
		name, router, given := strings.Cut(text, "=")
		l := setup.Link{Name: name}
		if given {
			a, err := netip.ParseAddr(router)
			if err != nil || !a.Is4() {
				return choice, Invalid("--line", text, "INTERFACE or INTERFACE=ROUTER, as in wwan0 or eth1=192.0.2.1")
			}
			l.Via = a
		}
		choice.Lines = append(choice.Lines, l)
	}
	if f.prefix != "" {
		var err error
		if choice.Routed, err = netip.ParsePrefix(f.prefix); err != nil || !join.ValidPrefix(choice.Routed) {
			return choice, Invalid("--prefix", f.prefix, "a public network of IPv6 of at most 64 bits, such as 2001:db8:100::/48")
		}
	}
	return choice, nil
}

// find examines the host.
func (f *setupFlags) find(what string) (*setup.Host, setup.Files, error) {
	files := setup.Files{Dir: f.dir}
	choice, err := f.choice()
	if err != nil {
		return nil, files, err
	}
	if dir, err := filepath.Abs(f.dir); err == nil {
		f.dir, files.Dir = dir, dir
	}
	h, err := setup.Find(choice)
	if err != nil {
		return nil, files, &Failure{What: what, Why: err}
	}
	if h.Unit = h.Unit && f.dir == setup.DefaultDir; h.Unit {
		files.Sysctl = "/etc/sysctl.d/90-tabane-gateway.conf"
	}
	return h, files, nil
}

// confirm prints steps and asks. It reports false without an error for a dry run.
func (a *App) confirm(ctx context.Context, f *setupFlags, what string, lines []string) (bool, error) {
	fmt.Fprintln(a.Out, "This will:")
	for _, l := range lines {
		fmt.Fprintln(a.Out, "  "+l)
	}
	if f.dryRun {
		return false, nil
	}
	if f.yes {
		return true, nil
	}
	fmt.Fprint(a.Out, "Go on? [y/N] ")
	answer, err := readLine(ctx, os.Stdin)
	if errors.Is(err, ErrInterrupted) {
		fmt.Fprintln(a.Out)
		return false, &Failure{What: what, Why: err, Do: "nothing was changed"}
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer == "y" || answer == "yes" {
		return true, nil
	}
	if errors.Is(err, io.EOF) {
		fmt.Fprintln(a.Out)
	}
	return false, &Failure{What: what, Why: errors.New("not confirmed, nothing was changed"), Do: "answer y, or use --yes"}
}

// maxLine bounds a line of standard input in bytes: an invitation has less than 200.
const maxLine = 1024

// readLine reads one line, and nothing after it: the next question reads on from there. The error
// is io.EOF where the input ends before the line does, and ErrInterrupted where ctx does. A read
// that waits then is left behind, because a terminal does not support deadlines.
func readLine(ctx context.Context, r io.Reader) (string, error) {
	type result struct {
		line string
		err  error
	}
	read := make(chan result, 1)
	go func() {
		line, err := nextLine(r)
		read <- result{line, err}
	}()
	select {
	case got := <-read:
		return got.line, got.err
	case <-ctx.Done():
		return "", ErrInterrupted
	}
}

func nextLine(r io.Reader) (string, error) {
	var line []byte
	b := make([]byte, 1)
	for len(line) < maxLine {
		n, err := r.Read(b)
		switch {
		case n > 0 && b[0] == '\n':
			return string(line), nil
		case n > 0:
			line = append(line, b[0])
		case err != nil:
			return string(line), err
		}
	}
	return "", fmt.Errorf("read line: it is longer than %d bytes", maxLine)
}

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

// planned describes steps, with the text of the configuration.
func planned(steps []setup.Step) []string {
	var list []string
	for _, s := range steps {
		list = append(list, s.Do())
		if s.File != nil {
			for line := range strings.Lines(s.File.Text) {
				list = append(list, "  | "+strings.TrimRight(line, "\n"))
			}
		}
	}
	return append(list, "tabane gateway leave undoes all of it.")
}

// before is how many steps are done before the peer is known: the first one makes the key.
const before = 1

// inside does the steps, and undoes them if one fails.
func (a *App) inside(ctx context.Context, what string, r *setup.Record, work func() error) error {
	err := work()
	if err == nil {
		return nil
	}
	_, undone := r.UndoAll(context.WithoutCancel(ctx))
	do := "nothing is left of it"
	if undone != nil {
		do = "tabane gateway leave undoes what is left"
	}
	return &Failure{What: what, Why: errors.Join(err, undone), Do: do}
}

// unknown are the values of a plan before the peer is known.
var unknown = join.Answer{
	Name: "vps", Gateway: netip.MustParseAddr("10.79.0.1"), Own: netip.MustParseAddr("10.79.0.2"),
	Gateway6: netip.MustParseAddr("fd00::1"), Own6: netip.MustParseAddr("fd00::2"),
}

// notCarried says that IPv6 does not go through the tunnel, and why.
func notCarried(why string) string {
	return "IPv6 is not carried, because " + why + ": what the site has of it goes on over its lines, without the tunnel."
}

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

func applyAll(r *setup.Record, steps []setup.Step) error {
	for _, s := range steps {
		if err := r.Apply(s); err != nil {
			return err
		}
	}
	return nil
}

// openPort has firewalls of this host accept packets to a port of the setup, until closed is
// called.
func (a *App) openPort(list []nft.Passage) (closed func(), err error) {
	if blocks, _ := nft.Blocking(list); len(blocks) == 0 {
		return func() {}, nil // without an answer, there are no rules
	}
	_, err = nft.Permit(setup.RulesOwner, list)
	left, _ := nft.Blocking(list)
	for _, b := range left { // what this cannot change
		fmt.Fprintf(a.Out, "Chain %q drops the packets. In another terminal: %s\n", b.Chain, b.Remedy())
	}
	return func() { _, _ = nft.Permit(setup.RulesOwner, nil) }, err // gateway leave removes them, too
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

func (a *App) gatewayLeaveCommand() *cobra.Command {
	var f setupFlags
	c := &cobra.Command{
		Use:   "leave",
		Short: "Undo what init or join did on this host",
		Long: `Leave stops the gateway, and undoes the other steps of tabane gateway init or join, the last one first: rules, files, kernel
parameters that nobody has changed since. A file that was edited is kept as FILE.old. It prints what it will do, and asks.`,
		Example: "  tabane gateway leave\n  tabane gateway leave --dry-run",
		Args:    Arguments(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			const what = "undo setup"
			record, err := setup.ReadRecord(setup.Files{Dir: f.dir}.Record())
			if err != nil {
				return &Failure{What: what, Why: err}
			}
			var lines []string
			steps := record.Steps()
			for i := len(steps) - 1; i >= 0; i-- {
				lines = append(lines, steps[i].Undo())
			}
			if ok, err := a.confirm(c.Context(), &f, what, lines); !ok {
				return err
			}
			kept, err := record.UndoAll(c.Context())
			for _, k := range kept {
				fmt.Fprintln(a.Out, "kept, because it was edited: "+k)
			}
			if err != nil {
				return &Failure{What: what, Why: err, Do: "repeat tabane gateway leave"}
			}
			return nil
		},
	}
	f.addCommon(c)
	return c
}
