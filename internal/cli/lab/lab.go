package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/cli/files"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/lab/browser"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/scenarios"
)

func (a *app) labCommands() []*cobra.Command {
	c := &cobra.Command{
		Use:     "lab",
		Short:   "Build a scenario's network on this machine and run experiments in it",
		GroupID: "lab",
		Long: `Lab builds a scenario's network from network namespaces of this machine and runs the same daemons in them as on real hosts.
A scenario is one that comes with the program, by name, or a file.`,
		Example: `  tabane lab run epe-steady --quick
  tabane lab up epe-steady
  tabane lab exec client -- curl -o /dev/null http://server/bytes/100000000
  tabane lab down --all`,
	}
	cli.Group(c)
	c.AddCommand(a.labUp(), a.labDown(), a.labList(), a.labShow(), a.labExec(), a.labCapture(), a.labSet(), a.labRun(), a.labWorlds(), a.labMerge())
	enter := &cobra.Command{
		Use:                lab.Verb,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return &cli.Failure{What: "enter node", Why: lab.Enter(args)}
		},
	}
	relay := &cobra.Command{
		Use:    lab.RelayVerb,
		Hidden: true,
		Args:   cli.Arguments(1, 1, "a file"),
		RunE: func(c *cobra.Command, args []string) error {
			log, err := a.Logger(a.Err, slog.LevelInfo)
			if err != nil {
				return err
			}
			if err := lab.Relay(c.Context(), args[0], log); err != nil {
				return &cli.Failure{What: "emulate link", Why: err}
			}
			return nil
		},
	}
	return []*cobra.Command{c, enter, relay}
}

// loadScenario reads an embedded scenario, or a file if the name is a path.
func loadScenario(name string) (*scenario.Spec, error) {
	if fromFile(name) {
		b, err := texts.read(name)
		if err != nil {
			return nil, cli.ConfigFailure(name, err)
		}
		f, err := files.Parse(name, b)
		if err != nil {
			return nil, err
		}
		if f.Scenario == nil {
			return nil, &cli.Failure{What: "read scenario", Name: name, Why: fmt.Errorf("it is no scenario (%s)", summary(f)), Do: "name a file with nodes and links"}
		}
		return f.Scenario, nil
	}
	b, err := scenarios.Read(name)
	if err != nil {
		return nil, &cli.Failure{What: "read scenario", Name: name, Why: errors.New("no scenario of that name comes with the program"),
			Do: "there are " + strings.Join(scenarios.Names(), ", ") + "; a file's name has a slash or ends in .yaml"}
	}
	f, err := files.Parse(builtIn(name), b)
	if err != nil {
		return nil, err
	}
	return f.Scenario, nil
}

// familyFlag adds the flag that replaces the key family of a scenario.
func familyFlag(flags *pflag.FlagSet, family *string) {
	flags.StringVar(family, "family", "", "IP version of content, EPE addresses and sessions with egress peers: ipv6, ipv4 or dual (default: the scenario's)")
}

// loadFamily reads a scenario like loadScenario and translates it to a family, unless that is
// empty.
func loadFamily(name, family string) (*scenario.Spec, error) {
	spec, err := loadScenario(name)
	if err != nil || family == "" || string(spec.Family) == family {
		return spec, err
	}
	if spec.Family != "" {
		return nil, &cli.Failure{What: "use --family", Name: family, Why: fmt.Errorf("the scenario has family: %s", spec.Family)}
	}
	spec.Family = scenario.Family(family)
	faults := spec.Translate()
	if len(faults) == 0 {
		faults = spec.Check()
	}
	if err := faults.Err(); err != nil {
		return nil, &cli.Failure{What: "use --family", Name: family, Why: err}
	}
	return spec, nil
}

// scenarioText returns the file of a scenario that loadScenario has read, merged with its base, or
// an empty string if it can no longer be read.
func scenarioText(name string, spec *scenario.Spec) string {
	if spec.Base != "" || spec.Family != "" {
		b, err := files.Encode(spec)
		if err != nil {
			return ""
		}
		return string(b)
	}
	read := scenarios.Read
	if fromFile(name) {
		read = texts.read
	}
	b, err := read(name)
	if err != nil {
		return ""
	}
	return string(b)
}

func fromFile(name string) bool {
	return strings.Contains(name, "/") || strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml")
}

// builtIn returns the file name of an embedded scenario in faults.
func builtIn(name string) string { return scenarios.File(name) }

func (a *app) labUp() *cobra.Command {
	var (
		name, routers, family string
		timeout               time.Duration
	)
	c := &cobra.Command{
		Use:   "up NAME|FILE",
		Short: "Build a scenario's network and leave it running",
		Long: `Up builds the network, starts the daemons and waits until all are ready and the client reaches the server. If that takes too
long, it prints what is missing and exits with 1; the lab stays up. If it is interrupted, it removes the lab.`,
		Example:           "  tabane lab up epe-steady\n  tabane lab up ./my.yaml --name mine",
		Args:              cli.Arguments(1, 1, "one scenario"),
		ValidArgsFunction: cli.CompleteNameOrFile(scenarioNames),
		RunE: func(c *cobra.Command, args []string) error {
			if timeout <= 0 {
				return cli.Usage(c, fmt.Errorf("--timeout must be > 0, got %s", timeout))
			}
			if _, err := parseRouters(routers, false); err != nil {
				return cli.Usage(c, err)
			}
			log, err := a.Logger(a.Err, slog.LevelWarn)
			if err != nil {
				return err
			}
			spec, err := loadFamily(args[0], family)
			if err != nil {
				return err
			}
			if err := cli.Require("start lab", role.Namespaces); err != nil {
				return err
			}
			if err := needRouters("start lab", routers); err != nil {
				return err
			}
			if name == "" {
				name = spec.Name
			}
			begun := time.Now()
			binary, err := product("start lab")
			if err != nil {
				return err
			}
			ctx, stop := cli.UntilHangup(c.Context())
			defer stop()
			l, err := lab.Up(ctx, lab.Options{
				Binary: binary,
				Name:   name, Spec: spec, Routers: routers, Timeout: timeout, Detach: true, KeepUnready: true, Log: log,
			})
			if errors.Is(err, lab.ErrNotReady) {
				fmt.Fprintln(a.Err, err)
				fmt.Fprintf(a.Err, "lab %q stays: look at it with tabane lab show %s, remove it with tabane lab down %s\n", name, name, name)
				return cli.ErrUnmet
			}
			if err != nil {
				return labFailure(ctx, "start lab", args[0], err)
			}
			fmt.Fprintf(a.Out, "lab %q is up: %s, ready after %.1f s\n", l.Name(), cli.Quantity(len(spec.Nodes), "node"), time.Since(begun).Seconds())
			fmt.Fprintf(a.Out, "next: tabane lab exec --lab %s NODE -- CMD; remove it with: tabane lab down %s\n", l.Name(), l.Name())
			return nil
		},
	}
	c.Flags().StringVar(&name, "name", "", "name of the lab (default: the scenario's)")
	c.Flags().DurationVar(&timeout, "timeout", lab.DefaultTimeout, "how long the lab may take to be ready")
	c.Flags().StringVar(&routers, "routers", lab.RoutersEmbedded, "what routers and reflectors run: embedded or frr")
	familyFlag(c.Flags(), &family)
	return c
}

// labFailure returns the failure of a command for a lab.
func labFailure(ctx context.Context, what, on string, err error) error {
	switch {
	case ctx.Err() != nil:
		return &cli.Failure{What: what, Name: on, Why: cli.ErrInterrupted, Do: "what was made has been removed"}
	case errors.Is(err, lab.ErrNotFound):
		return &cli.Failure{What: what, Name: on, Why: err, Do: "see tabane lab list, or start one with tabane lab up"}
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOSPC):
		return &cli.Failure{What: what, Name: on, Why: err, Do: "a lab needs a /run that can be written, and has room"}
	}
	return &cli.Failure{What: what, Name: on, Why: err}
}

func (a *app) labDown() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "down NAME...",
		Short: "Remove labs, whatever is left of them",
		Long: `Down removes the labs that are named, also incomplete ones. --all removes those of the user who calls it, or who
calls sudo. It skips labs whose creating process still runs, such as those of a "lab run" in another terminal; the exit code is then 1. It
also removes what browsers of killed experiments have left.`,
		Example:           "  tabane lab down epe-steady\n  tabane lab down --all",
		ValidArgsFunction: cli.CompleteAll(labNames),
		RunE: func(c *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return cli.Usage(c, errors.New("want names of labs, or --all"))
			}
			if err := cli.Require("remove lab", role.Namespaces); err != nil {
				return err
			}
			infos, err := lab.List()
			if err != nil {
				return labFailure(c.Context(), "list labs", "", err)
			}
			there := map[string]bool{}
			for _, i := range infos {
				there[i.Name] = true
			}
			var used []string
			if all {
				args, used = unowned(infos, lab.User())
			}
			for _, name := range args {
				if !there[name] {
					return &cli.Failure{What: "remove lab", Name: name, Why: lab.ErrNotFound, Do: "see tabane lab list"}
				}
			}
			var errs []error
			for _, name := range args {
				if err := lab.Down(c.Context(), name); err != nil {
					errs = append(errs, err)
					continue
				}
				fmt.Fprintf(a.Out, "lab %q is removed\n", name)
			}
			// An experiment that was killed may have left its browsers' profiles.
			errs = append(errs, browser.Sweep())
			if err := errors.Join(errs...); err != nil {
				return &cli.Failure{What: "remove labs", Why: err, Do: "try again"}
			}
			if len(used) > 0 {
				fmt.Fprintf(a.Err, "left alone, because the process that made them still runs: %s; to remove them nevertheless, name them\n", strings.Join(used, ", "))
				return cli.ErrUnmet
			}
			return nil
		},
	}
	c.Flags().BoolVar(&all, "all", false, "remove all labs of this user whose creating process has ended")
	return c
}

// unowned returns the labs of a user that `lab down --all` removes, and the others of that user. One
// whose owner is running is being built or has an experiment running; it is removed only by name.
func unowned(labs []lab.Info, user int) (removed, owned []string) {
	for _, i := range labs {
		switch {
		case i.User != user:
		case i.Owned:
			owned = append(owned, i.Name)
		default:
			removed = append(removed, i.Name)
		}
	}
	return removed, owned
}

func (a *app) labList() *cobra.Command {
	var builtIn bool
	c := &cobra.Command{
		Use:     "list",
		Short:   "List the labs of this machine",
		Example: "  tabane lab list\n  tabane lab list --scenarios",
		Args:    cli.Arguments(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if builtIn {
				return listScenarios(a.Out)
			}
			infos, err := lab.List()
			if err != nil {
				return &cli.Failure{What: "list labs", Why: err, Do: "run it as root"}
			}
			return listLabs(a.Out, infos, cli.Width(a.Out))
		},
	}
	c.Flags().BoolVar(&builtIn, "scenarios", false, "list the scenarios that come with the program instead")
	return c
}

// listLabs writes the table of labs. The names of nodes are broken so that it has width columns,
// unless 0.
func listLabs(out io.Writer, infos []lab.Info, width int) error {
	const gap, least = 2, 24
	lines := [][]string{{"LAB", "STATE", "SCENARIO", "SINCE"}}
	for _, i := range infos {
		since := "-"
		if !i.Since.IsZero() {
			since = i.Since.Local().Format(time.DateTime)
		}
		lines = append(lines, []string{i.Name, string(i.Condition), i.Scenario, since})
	}
	room := math.MaxInt
	if width > 0 {
		room = width
		for c := range lines[0] {
			widest := 0
			for _, line := range lines {
				widest = max(widest, utf8.RuneCountInString(line[c]))
			}
			room -= widest + gap
		}
		room = max(room, least)
	}
	w := tabwriter.NewWriter(out, 0, 0, gap, ' ', 0)
	for i, line := range lines {
		nodes := []string{"NODES"}
		if i > 0 {
			nodes = cli.Wrap(strings.Join(infos[i-1].Nodes, " "), room)
		}
		fmt.Fprintln(w, strings.Join(line, "\t")+"\t"+strings.Join(nodes, "\n"+strings.Repeat("\t", len(line))))
	}
	return w.Flush()
}

func listScenarios(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SCENARIO\tQUESTION")
	for _, name := range scenarios.Names() {
		spec, err := loadScenario(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%s\n", name, spec.Question)
	}
	return w.Flush()
}

// usable returns the user's labs that commands can use, including those with an exited daemon.
func usable(labs []lab.Info, user int) []string {
	var names []string
	for _, i := range labs {
		if i.User == user && i.Condition != lab.Stale {
			names = append(names, i.Name)
		}
	}
	return names
}

// openLab opens the lab of that name, or without a name the user's only lab, whose name is then
// printed on a terminal. by is how the command is given a name, as a remedy says it.
func (a *app) openLab(ctx context.Context, what, name, by string) (*lab.Lab, error) {
	if err := cli.Require(what, role.Namespaces); err != nil {
		return nil, err
	}
	if name == "" {
		infos, err := lab.List()
		if err != nil {
			return nil, labFailure(ctx, what, "", err)
		}
		up := usable(infos, lab.User())
		switch len(up) {
		case 0:
			return nil, &cli.Failure{What: what, Why: errors.New("no lab of this user is up"), Do: "start one with tabane lab up epe-steady, or name another user's " + by}
		case 1:
			name = up[0]
			if cli.Width(a.Err) > 0 {
				fmt.Fprintf(a.Err, "lab %q\n", name)
			}
		default:
			return nil, &cli.Failure{What: what, Why: fmt.Errorf("several labs of this user are up: %s", strings.Join(up, ", ")), Do: "choose one " + by}
		}
	}
	l, err := lab.Open(name)
	if err != nil {
		return nil, labFailure(ctx, what, name, err)
	}
	return l, nil
}

// withLab is how commands with labFlag are given the name of a lab.
const withLab = "with --lab"

func labFlag(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "lab", "", "`name` of the lab (default: the only lab of this user)")
	cli.CompleteFlag(c, "lab", labNames)
}

func (a *app) labExec() *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:   "exec NODE -- CMD...",
		Short: "Run any installed program on a lab's node",
		Long: `Exec replaces itself by the program, in the network namespace of the node: terminal, signals and exit code are the program's. Nodes
know each other by name.`,
		Example: `  tabane lab exec client -- curl -o /dev/null http://server/bytes/100000000
  tabane lab exec server -- ip -6 route show table 101`,
		Args:              cli.Arguments(1, -1, "a node, -- and a command"),
		ValidArgsFunction: cli.Complete(nodeNames(&name)),
		RunE: func(c *cobra.Command, args []string) error {
			node, argv := args[0], args[1:]
			if len(argv) > 0 && argv[0] == "--" {
				argv = argv[1:]
			}
			if len(argv) == 0 {
				return cli.Usage(c, errors.New("want a node, -- and a command"))
			}
			l, err := a.openLab(c.Context(), "run command", name, withLab)
			if err != nil {
				return err
			}
			return labFailure(c.Context(), "run command on", node, l.Exec(node, argv))
		},
	}
	labFlag(c, &name)
	// Arguments after the node belong to the command.
	c.Flags().SetInterspersed(false)
	return c
}

func (a *app) labCapture() *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:   "capture NODE[:INTERFACE] FILE",
		Short: "Write a node's packets to a pcapng file until interrupted",
		Example: `  tabane lab capture asbr1:lan /tmp/asbr1.pcapng
  tabane lab capture server - | tcpdump -nr -`,
		Args:              cli.Arguments(2, 2, "a node and a file"),
		ValidArgsFunction: completeCapture(&name),
		RunE: func(c *cobra.Command, args []string) error {
			l, err := a.openLab(c.Context(), "capture packets", name, withLab)
			if err != nil {
				return err
			}
			node, iface, _ := strings.Cut(args[0], ":")
			stats, err := l.Capture(c.Context(), node, iface, args[1])
			if err != nil {
				return &cli.Failure{What: "capture packets of", Name: args[0], Why: err}
			}
			fmt.Fprintf(a.Err, "%d packets, %d bytes, %d dropped\n", stats.Packets, stats.Bytes, stats.Dropped)
			return nil
		},
	}
	labFlag(c, &name)
	return c
}

func (a *app) labSet() *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:   "set LINK KEY=VALUE...",
		Short: "Change a link of a lab while traffic runs",
		Long: `Set replaces the shape of a link as a whole. The keys and values are those of links in a scenario; keys below another have
a dot before them, and may be shortened to their last part (discipline for buffer.discipline).

  rate=30Mbit/s       counts whole Ethernet frames; "unlimited" removes the limit
  queue=50ms          how long a packet may wait at that rate (default 50ms)
  discipline=codel    how the queue drops: drop-tail, codel (RFC 8289) with codel.target and codel.interval, or red with
                      buffer.red.min.time, buffer.red.max.time and buffer.red.p
  ecn=true            codel and red mark packets that support ECN instead of dropping them
  packets=100         length of the queue in packets, instead of queue
  delay=20ms          one way
  jitter=5ms          uniform; normal:5ms has that standard deviation, pareto:5ms adds that mean with a heavy tail; with :reorder
                      packets may overtake each other
  loss=0.1%           probability of loss, also as 0.001 or 1e-3; ge:1%:20% is a Gilbert-Elliott model with these probabilities
                      of a transition to the bad state, in which all is lost, and back
  duplicate=0.1%      probability that a packet is delivered twice
  load.rate=5Mbit/s   traffic of others; with load.on=1s and load.off=500ms in such times, on average
  forward.loss=1%     forward.KEY is for the direction from the link's first end to its second, backward.KEY for the other:
                      ` + linkmodel.Properties("") + `

Any link of two ends can have all of these; a switch has a rate and a queue.`,
		Example:           "  tabane lab set a rate=15Mbit/s queue=50ms\n  tabane lab set a rate=15Mbit/s queue=500ms discipline=codel ecn=true\n  tabane lab set b rate=30Mbit/s delay=20ms jitter=2ms loss=0.1%\n  tabane lab set b rate=unlimited",
		Args:              cli.Arguments(2, -1, "a link and what it does"),
		ValidArgsFunction: cli.Complete(linkNames(&name)),
		RunE: func(c *cobra.Command, args []string) error {
			shape, err := scenario.ParseShape(args[1:])
			if err != nil {
				return &cli.UsageError{Why: fmt.Sprintf("%s: %v", strings.Join(args[1:], " "), err), Do: "see tabane lab set --help"}
			}
			l, err := a.openLab(c.Context(), "set link", name, withLab)
			if err != nil {
				return err
			}
			before, err := l.Links().View(c.Context(), args[0])
			if err == nil {
				err = l.Links().Set(args[0], shape)
			}
			var after *lab.LinkView
			if err == nil {
				after, err = l.Links().View(c.Context(), args[0])
			}
			if err != nil {
				return &cli.Failure{What: "set link", Name: args[0], Why: err}
			}
			fmt.Fprintf(a.Out, "%s: %s -> %s\n", args[0], brief(before.Text), brief(after.Text))
			return nil
		},
	}
	labFlag(c, &name)
	return c
}
