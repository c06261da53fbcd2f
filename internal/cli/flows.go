package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/epe/flowcount"
	"github.com/tabane/tabane/internal/epe/flows"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/role"
)

// drawEvery is the minimum interval between updates of the table of flows, so that it can be read.
const drawEvery = time.Second

// bestPath is the name of an edge's default address.
const bestPath = "best path"

type flowsFlags struct {
	interfaces []string
	file       string
	interval   time.Duration
	count      int
	duration   time.Duration
	json, csv  bool
	top        int
	max        int
	cpu        float64
	metrics    string
	// edge is where the status of the edge of file is served, if that chooses subflows.
	edge netip.AddrPort
}

func (a *App) flowsCommand() *cobra.Command {
	var o flowsFlags
	c := &cobra.Command{
		Use:     "flows [-i INTERFACE]... [-c FILE]",
		Short:   "Show what every subflow carries, and over which egress peer",
		GroupID: "tools",
		Long: `Flows counts, with a program in the kernel, the packets and bytes of every flow that network interfaces send and receive:
by the addresses and ports inside SRv6 encapsulation, and by the SID. It shows them with the MPTCP connection that they
belong to and the TCP metrics of their sockets, as a table that is updated, as JSON lines, or as CSV. It changes no packet.
On a terminal q quits, and the columns that do not fit are left out from the right. BGP and BFD sessions are listed after the content.

Bytes are those on the wire, from the Ethernet header on. Every line of JSON or CSV is a flow that carried something in the
interval, or has ended; all others carried nothing.`,
		Example: `  tabane flows
  tabane flows -i lan -c /etc/tabane/edge.yaml
  tabane flows --json --for 30s >flows.jsonl
  tabane flows --metrics '[::1]:9120'
  tabane lab exec server -- tabane flows`,
		Args: Arguments(0, 0, "no arguments beside flags"),
		RunE: func(c *cobra.Command, _ []string) error {
			var invalid *UsageError
			if err := o.check(); errors.As(err, &invalid) {
				return err
			} else if err != nil {
				return Usage(c, err)
			}
			return a.flows(c.Context(), o)
		},
	}
	f := c.Flags()
	f.StringSliceVarP(&o.interfaces, "interface", "i", nil, "`interface` to watch, or a pattern such as eth* for all that match, also those that come later; may be given several times (default that of the file, or all that are up but loopback, also those that come later)")
	f.StringVarP(&o.file, "config", "c", "", "configuration `file` of this host's edge or gateway: shows egress peers in place of EPE addresses, or paths in place of interfaces and the flows of NAT sessions")
	completeFile(c)
	CompleteFlag(c, "interface", interfaceNames)
	f.DurationVar(&o.interval, "interval", flows.DefaultInterval, "how often flows are read")
	f.IntVar(&o.count, "count", 0, "end after this many intervals")
	f.DurationVar(&o.duration, "for", 0, "end after this time")
	f.BoolVar(&o.json, "json", false, "print JSON lines")
	f.BoolVar(&o.csv, "csv", false, "print comma-separated values")
	f.IntVar(&o.top, "top", 0, "show only the `n` that carry most: connections in the table, flows in JSON and CSV")
	f.IntVar(&o.max, "max-flows", flowcount.DefaultMaxFlows, "size of the flow table in the kernel; when it is nearly full, the flows that were idle for longest end early")
	f.Float64Var(&o.cpu, "cpu", 100*flows.DefaultShare, "largest share of a core for reading, in `percent`; with more flows than that suffices for, intervals are left out")
	f.StringVar(&o.metrics, "metrics", "", "`address` and port to serve /metrics (Prometheus) and /status on, like [::1]:9120")
	return c
}

func (o *flowsFlags) check() error {
	switch {
	case o.interval < flows.MinInterval || o.interval > flows.MaxInterval:
		return fmt.Errorf("--interval must be between %v and %v, got %v", flows.MinInterval, flows.MaxInterval, o.interval)
	case o.count < 0:
		return fmt.Errorf("--count must not be negative, got %d", o.count)
	case o.duration < 0:
		return fmt.Errorf("--for must not be negative, got %v", o.duration)
	case o.top < 0:
		return fmt.Errorf("--top must not be negative, got %d", o.top)
	case o.max < 1 || o.max > flowcount.MaxMaxFlows:
		return fmt.Errorf("--max-flows must be between 1 and %d, got %d", flowcount.MaxMaxFlows, o.max)
	case !(o.cpu > 0 && o.cpu <= 100):
		return fmt.Errorf("--cpu must be above 0 and up to 100, got %v", o.cpu)
	case o.json && o.csv:
		return errors.New("--json and --csv exclude each other")
	}
	if _, err := netip.ParseAddrPort(o.metrics); err != nil && o.metrics != "" {
		return Invalid("--metrics", o.metrics, `an address and port like "[::1]:9120"`)
	}
	for _, p := range o.interfaces {
		if _, err := path.Match(p, ""); err != nil && isPattern(p) {
			return fmt.Errorf("--interface %q is no pattern: a bracket is not closed, or empty", p)
		}
	}
	return nil
}

// isPattern reports whether a name of an interface stands for all that match it.
func isPattern(name string) bool { return strings.ContainsAny(name, "*?[") }

// matches reports whether a name matches a pattern, which check has found to be one.
func matches(pattern, name string) bool {
	ok, _ := path.Match(pattern, name)
	return ok
}

// matching returns the names, and in place of patterns those of the interfaces that match. The name
// of an interface is no pattern, whatever it has in it.
func matching(names []string, interfaces func() ([]net.Interface, error)) ([]string, error) {
	all, err := interfaces()
	if err != nil {
		return nil, &Failure{What: "list interfaces", Why: err}
	}
	var chosen []string
	add := func(name string) {
		if !slices.Contains(chosen, name) {
			chosen = append(chosen, name)
		}
	}
	for _, p := range names {
		if !isPattern(p) || slices.ContainsFunc(all, func(i net.Interface) bool { return i.Name == p }) {
			add(p)
			continue
		}
		for _, i := range all {
			if countable(i) && matches(p, i.Name) {
				add(i.Name)
			}
		}
	}
	return chosen, nil
}

// errEnough ends the run after the requested number of intervals.
var errEnough = errors.New("all intervals are read")

func (a *App) flows(ctx context.Context, o flowsFlags) (err error) {
	options, err := a.flowsOptions(ctx, o)
	if err != nil {
		return err
	}
	on := strings.Join(options.Interfaces, ", ")
	if err := Require("watch flows", role.NetAdmin); err != nil {
		return err
	}
	if o.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.duration)
		defer cancel()
	}
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	hint := ""
	if !o.json && !o.csv && Width(a.Out) > 0 {
		restore, active := onKey(os.Stdin, 'q', quit)
		defer func() { err = errors.Join(err, restore()) }()
		if active {
			hint = "q: quit"
		}
	}
	var known uses
	if o.edge.IsValid() {
		following, stop := context.WithCancel(ctx)
		var follower sync.WaitGroup
		follower.Go(func() { known.follow(following, o.edge) })
		defer follower.Wait()
		defer stop()
	}
	write, read := a.flowsWriter(o, hint, max(0, len(options.Peers)-1)), 0
	options.Sink = func(s *flows.Snapshot) error {
		s.Use = known.of
		read++
		last := read == o.count
		if err := write(s, last || ctx.Err() != nil); err != nil {
			return err
		}
		if last {
			return errEnough
		}
		return nil
	}
	listener, err := o.listen(ctx)
	if err != nil {
		return err
	}
	if err = a.watchFlows(ctx, options, listener); err != nil {
		return watchFailure(on, err)
	}
	return nil
}

// flowsOptions returns what the flags ask for, without a sink.
func (a *App) flowsOptions(ctx context.Context, o flowsFlags) (options flows.Options, err error) {
	log, err := a.Logger(a.Err, slog.LevelWarn)
	if err != nil {
		return options, err
	}
	options = flows.Options{Interfaces: o.interfaces, Interval: o.interval, MaxFlows: o.max, Share: o.cpu / 100, Log: log}
	if o.file != "" {
		if err := o.readFile(ctx, &options); err != nil {
			return options, err
		}
	}
	switch {
	case len(options.Interfaces) == 0:
		options.List = watchable
		options.Interfaces, err = options.List()
	case slices.ContainsFunc(o.interfaces, isPattern):
		options.List = func() ([]string, error) { return matching(o.interfaces, net.Interfaces) }
		if options.Interfaces, err = options.List(); err != nil {
			break
		}
		for _, p := range o.interfaces {
			if !slices.ContainsFunc(options.Interfaces, func(name string) bool { return name == p || matches(p, name) }) {
				return options, &Failure{What: "find interface", Name: p, Why: errors.New("no interface of this host matches"), Do: "name an interface of this host with -i"}
			}
		}
	}
	return options, err
}

// listen opens the listener of --metrics, nil without it.
func (o flowsFlags) listen(ctx context.Context) (net.Listener, error) {
	if o.metrics == "" {
		return nil, nil
	}
	at, err := netip.ParseAddrPort(o.metrics)
	if err != nil {
		return nil, err
	}
	l, err := listen(ctx, at)
	if err != nil {
		return nil, &Failure{What: "serve metrics at", Name: at.String(), Why: err, Do: "choose another address with --metrics"}
	}
	return l, nil
}

// watchFlows watches until ctx is done or the sink has enough. It serves metrics at the listener, if
// there is one, and closes it.
func (a *App) watchFlows(ctx context.Context, options flows.Options, listener net.Listener) error {
	w, err := flows.New(options)
	if err != nil {
		if listener != nil {
			err = errors.Join(err, listener.Close())
		}
		return err
	}
	if listener == nil {
		err = w.Run(ctx)
	} else if log, e := a.Logger(a.Err, slog.LevelInfo); e != nil {
		err = errors.Join(e, listener.Close())
	} else {
		err = monitor(ctx, log, netip.AddrPort{}, listener, "flows", a.Version, w)
	}
	if errors.Is(err, errEnough) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return errors.Join(err, w.Close())
}

// readFile reads the interfaces and peers from the configuration of an edge or a gateway.
func (o *flowsFlags) readFile(ctx context.Context, options *flows.Options) error {
	f, err := load(ctx, o.file)
	if err != nil {
		return err
	}
	if f.Gateway != nil {
		o.readGateway(f.Gateway, options)
		return nil
	}
	if f.Edge == nil {
		return &Failure{What: "read interfaces from", Name: o.file, Why: fmt.Errorf("it has no section %q or %q (it holds %s)", "edge:", "gateway:", f.Summary()), Do: "name the file that this host's edge or gateway runs with"}
	}
	if len(options.Interfaces) == 0 {
		options.Interfaces = []string{f.Edge.Interface}
	}
	if f.Edge.MPTCP.Chooses() {
		d, _ := role.Named(role.Edge)
		o.edge = d.Status(&f.Sections)
	}
	options.Peers = map[netip.Addr]string{f.Edge.Address: bestPath}
	for _, p := range f.Edge.Peers {
		options.Peers[p.Address] = p.Name
	}
	return nil
}

// readGateway reads the same from a gateway's section.
func (o *flowsFlags) readGateway(c *gateway.Config, options *flows.Options) {
	g := &flows.Gateway{Paths: map[string]string{}, LAN: c.LAN.Prefixes}
	interfaces := slices.Clone(c.LAN.Interfaces)
	for _, p := range c.Paths {
		if g.Paths[p.Interface] == "" {
			interfaces = append(interfaces, p.Interface)
		}
		g.Paths[p.Interface] = cmp.Or(g.Paths[p.Interface], p.Name)
	}
	for _, p := range c.Peers {
		if gateway.ModeOf(p.Mode, p.Seal) == dataplane.NAT {
			g.NAT = append(g.NAT, p.Prefixes...)
		}
	}
	if options.Gateway = g; len(options.Interfaces) == 0 {
		options.Interfaces = interfaces
	}
}

// watchable returns the names of interfaces that are up, except loopback, with Ethernet or IP
// packets.
func watchable() ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, &Failure{What: "list interfaces", Why: err}
	}
	var names []string
	for _, i := range all {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 && countable(i) {
			names = append(names, i.Name)
		}
	}
	if len(names) == 0 {
		return nil, &Failure{What: "list interfaces", Why: errors.New("no interface of this host is up"), Do: "name one with -i"}
	}
	return names, nil
}

// countable reports whether an interface has Ethernet or IP packets: those with Ethernet have an
// address of six bytes, those with IP packets none.
func countable(i net.Interface) bool {
	n := len(i.HardwareAddr)
	return n == 6 || n == 0
}

// flowsWriter returns the function that writes snapshots in the format of the flags. addresses is
// the maximum number of addresses advertised to clients.
func (a *App) flowsWriter(o flowsFlags, hint string, addresses int) func(s *flows.Snapshot, last bool) error {
	switch {
	case o.json:
		w := flows.NewJSON(a.Out, o.top)
		return func(s *flows.Snapshot, _ bool) error { return w.Write(s) }
	case o.csv:
		w := flows.NewCSV(a.Out, o.top)
		return func(s *flows.Snapshot, _ bool) error { return w.Write(s) }
	case Width(a.Out) > 0:
		f, _ := fileOf(a.Out)
		size := func() (columns, lines int) {
			size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
			if err != nil {
				return 0, 0
			}
			return int(size.Col), int(size.Row)
		}
		return flows.NewTable(a.Out, flows.TableOptions{Top: o.top, Every: drawEvery, Addresses: addresses, Size: size, Hint: hint}).Write
	case o.metrics != "":
		// Without a terminal, only metrics are served.
		return func(*flows.Snapshot, bool) error { return nil }
	}
	return flows.NewTable(a.Out, flows.TableOptions{Top: o.top, Every: drawEvery, Addresses: addresses}).Write
}

func watchFailure(interfaces string, err error) error {
	do := ""
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		do = "tabane doctor says what this host can do"
	case errors.Is(err, fs.ErrNotExist):
		do = "name an interface of this host with -i"
	}
	return &Failure{What: "watch flows of", Name: interfaces, Why: err, Do: do}
}
