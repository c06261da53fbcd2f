package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli/setup"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/gateway/join"
	"github.com/tabane/tabane/internal/kernel/nft"
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
