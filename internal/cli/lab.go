package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/channel"
	"github.com/tabane/tabane/internal/config"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/scenario"
	"github.com/tabane/tabane/internal/unit"
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
	group(c)
	c.AddCommand(a.labUp(), a.labDown(), a.labList(), a.labExec(), a.labCapture(), a.labSet(), a.labRun())
	enter := &cobra.Command{
		Use:                lab.Verb,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return &failure{what: "enter a lab's node", why: lab.Enter(args)}
		},
	}
	relay := &cobra.Command{
		Use:    lab.RelayVerb,
		Hidden: true,
		Args:   arguments(1, 1, "a file"),
		RunE: func(c *cobra.Command, args []string) error {
			log, err := a.logger(a.err, slog.LevelInfo)
			if err != nil {
				return err
			}
			if err := lab.Relay(c.Context(), args[0], log); err != nil {
				return &failure{what: "emulate a link", why: err}
			}
			return nil
		},
	}
	return []*cobra.Command{c, enter, relay}
}

// loadScenario reads a scenario that comes with the program, or a file when the name is a path.
func loadScenario(name string) (*scenario.Spec, error) {
	if fromFile(name) {
		f, err := load(name)
		if err != nil {
			return nil, err
		}
		if f.Scenario == nil {
			return nil, &failure{what: "read the scenario", on: name, why: fmt.Errorf("it is no scenario (%s)", summary(f)), do: "name a file with nodes and links"}
		}
		return f.Scenario, nil
	}
	b, err := scenarios.Read(name)
	if err != nil {
		return nil, &failure{what: "read the scenario", on: name, why: errors.New("no scenario of that name comes with the program"),
			do: "there are " + strings.Join(scenarios.Names(), ", ") + "; a file's name has a slash or ends in .yaml"}
	}
	f, err := config.Parse(builtIn(name), b)
	if err != nil {
		return nil, err
	}
	return f.Scenario, nil
}

// scenarioText is the file of a scenario that loadScenario has read, or nothing if it is gone since.
func scenarioText(name string) string {
	read := scenarios.Read
	if fromFile(name) {
		read = os.ReadFile
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

// builtIn is what faults call the file of a scenario that comes with the program.
func builtIn(name string) string { return "scenarios/" + name + "/scenario.yaml" }

func (a *app) labUp() *cobra.Command {
	var name, routers string
	c := &cobra.Command{
		Use:     "up NAME|FILE",
		Short:   "Build a scenario's network and leave it running",
		Example: "  tabane lab up epe-steady\n  tabane lab up ./my.yaml --name mine",
		Args:    arguments(1, 1, "one scenario"),
		RunE: func(c *cobra.Command, args []string) error {
			if _, err := parseRouters(routers, false); err != nil {
				return usage(c, err)
			}
			log, err := a.logger(a.err, slog.LevelWarn)
			if err != nil {
				return err
			}
			spec, err := loadScenario(args[0])
			if err != nil {
				return err
			}
			if err := require("start a lab", role.Namespaces); err != nil {
				return err
			}
			if err := needRouters("start a lab", routers); err != nil {
				return err
			}
			if name == "" {
				name = spec.Name
			}
			begun := time.Now()
			l, err := lab.Up(c.Context(), lab.Options{Name: name, Spec: spec, Routers: routers, Detach: true, Log: log})
			if err != nil {
				return labFailure(c.Context(), "start a lab", args[0], err)
			}
			fmt.Fprintf(a.out, "lab %q is up: %s, ready after %.1f s\n", l.Name(), quantity(len(spec.Nodes), "node"), time.Since(begun).Seconds())
			fmt.Fprintf(a.out, "next: tabane lab exec --lab %s NODE -- CMD; remove it with: tabane lab down %s\n", l.Name(), l.Name())
			return nil
		},
	}
	c.Flags().StringVar(&name, "name", "", "name of the lab (default: the scenario's)")
	c.Flags().StringVar(&routers, "routers", lab.RoutersEmbedded, "what routers and reflectors run: embedded or frr")
	return c
}

// labFailure says why a lab did not do what was asked.
func labFailure(ctx context.Context, what, on string, err error) error {
	switch {
	case ctx.Err() != nil:
		return &failure{what: what, on: on, why: errors.New("interrupted"), do: "what was made has been removed"}
	case errors.Is(err, lab.ErrNotFound):
		return &failure{what: what, on: on, why: err, do: "see tabane lab list, or start one with tabane lab up"}
	}
	return &failure{what: what, on: on, why: err}
}

func (a *app) labDown() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "down NAME...",
		Short: "Remove labs, whatever is left of them",
		Long: `Down removes the labs that are named, in any condition. --all leaves those alone whose maker still runs, such as the labs of a
"lab run" in another terminal; the exit code is then 1.`,
		Example: "  tabane lab down epe-steady\n  tabane lab down --all",
		RunE: func(c *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usage(c, errors.New("want names of labs, or --all"))
			}
			if err := require("remove a lab", role.Namespaces); err != nil {
				return err
			}
			infos, err := lab.List()
			if err != nil {
				return labFailure(c.Context(), "list labs", "", err)
			}
			there := map[string]bool{}
			var used []string
			for _, i := range infos {
				there[i.Name] = true
				switch {
				case !all:
				case alive(i.Owner):
					// Somebody's experiment runs in it, or it is being built: only its name says that it is meant.
					used = append(used, i.Name)
				default:
					args = append(args, i.Name)
				}
			}
			for _, name := range args {
				if !there[name] {
					return &failure{what: "remove a lab", on: name, why: lab.ErrNotFound, do: "see tabane lab list"}
				}
			}
			var errs []error
			for _, name := range args {
				if err := lab.Down(c.Context(), name); err != nil {
					errs = append(errs, err)
					continue
				}
				fmt.Fprintf(a.out, "lab %q is removed\n", name)
			}
			if err := errors.Join(errs...); err != nil {
				return &failure{what: "remove labs", why: err, do: "try again"}
			}
			if len(used) > 0 {
				fmt.Fprintf(a.err, "left alone, because the process that made them still runs: %s; to remove them nevertheless, name them\n", strings.Join(used, ", "))
				return errUnmet
			}
			return nil
		},
	}
	c.Flags().BoolVar(&all, "all", false, "remove all labs of this machine that no running process has made")
	return c
}

// alive tells whether there is a process of that id.
func alive(pid int) bool {
	return pid > 0 && !errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

func (a *app) labList() *cobra.Command {
	var builtIn bool
	c := &cobra.Command{
		Use:     "list",
		Short:   "List the labs of this machine",
		Example: "  tabane lab list\n  tabane lab list --scenarios",
		Args:    arguments(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if builtIn {
				return listScenarios(a.out)
			}
			infos, err := lab.List()
			if err != nil {
				return &failure{what: "list labs", why: err, do: "run it as root"}
			}
			return listLabs(a.out, infos)
		},
	}
	c.Flags().BoolVar(&builtIn, "scenarios", false, "list the scenarios that come with the program instead")
	return c
}

func listLabs(out io.Writer, infos []lab.Info) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "LAB\tSTATE\tSCENARIO\tSINCE\tNODES")
	for _, i := range infos {
		since := "-"
		if !i.Since.IsZero() {
			since = i.Since.Local().Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", i.Name, i.Condition, i.Scenario, since, strings.Join(i.Nodes, " "))
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

// openLab opens the lab of that name, or the only one when no name is given.
func openLab(ctx context.Context, what, name string) (*lab.Lab, error) {
	if err := require(what, role.Namespaces); err != nil {
		return nil, err
	}
	if name == "" {
		infos, err := lab.List()
		if err != nil {
			return nil, labFailure(ctx, what, "", err)
		}
		var up []string
		for _, i := range infos {
			if i.Condition == lab.Running {
				up = append(up, i.Name)
			}
		}
		switch len(up) {
		case 0:
			return nil, &failure{what: what, why: errors.New("no lab is up"), do: "start one with: tabane lab up epe-steady"}
		case 1:
			name = up[0]
		default:
			return nil, &failure{what: what, why: errors.New("several labs are up"), do: "choose one with --lab: " + strings.Join(up, ", ")}
		}
	}
	l, err := lab.Open(name)
	if err != nil {
		return nil, labFailure(ctx, what, name, err)
	}
	return l, nil
}

func labFlag(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "lab", "", "`name` of the lab; not needed when one alone is up")
}

func (a *app) labExec() *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:   "exec NODE -- CMD...",
		Short: "Run any installed program on a lab's node",
		Long: `Exec becomes the program, inside the node's network: terminal, signals and exit code are the program's. Nodes know each other
by name.`,
		Example: `  tabane lab exec client -- curl -o /dev/null http://server/bytes/100000000
  tabane lab exec server -- ip -6 route show table 101`,
		Args: arguments(1, -1, "a node, -- and a command"),
		RunE: func(c *cobra.Command, args []string) error {
			node, argv := args[0], args[1:]
			if len(argv) > 0 && argv[0] == "--" {
				argv = argv[1:]
			}
			if len(argv) == 0 {
				return usage(c, errors.New("want a node, -- and a command"))
			}
			l, err := openLab(c.Context(), "run a command", name)
			if err != nil {
				return err
			}
			return labFailure(c.Context(), "run a command", node, l.Exec(node, argv))
		},
	}
	labFlag(c, &name)
	// What follows the node is the command's.
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
		Args: arguments(2, 2, "a node and a file"),
		RunE: func(c *cobra.Command, args []string) error {
			l, err := openLab(c.Context(), "capture packets", name)
			if err != nil {
				return err
			}
			node, iface, _ := strings.Cut(args[0], ":")
			stats, err := l.Capture(c.Context(), node, iface, args[1])
			if err != nil {
				return &failure{what: "capture packets", on: args[0], why: err}
			}
			fmt.Fprintf(a.err, "%d packets, %d bytes, %d dropped\n", stats.Packets, stats.Bytes, stats.Dropped)
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
		Long: `Set says all that a link does from now on, in both directions; what is not named is not done.

  rate=30Mbit/s     counts whole Ethernet frames; "unlimited" lifts the limit
  queue=50ms        how long a packet may wait at that rate (default 50ms)
  discipline=codel  keeps the queue short (RFC 8289); codel:5ms,100ms has that target and interval. red:5ms,50ms,10% drops early
                    (RED): from the first mean wait on, with the probability at the second
  ecn=true          codel and red mark packets that understand ECN, in place of dropping them
  delay=20ms        one way
  jitter=5ms        the delay varies by as much, evenly distributed; normal:5ms has that standard deviation
  loss=1%           packets that are lost, independently of each other; ge:1%,20% loses all while the link is bad, and after each packet
                    it becomes bad with the first probability, good again with the second (Gilbert-Elliott)
  duplicate=0.1%    packets that arrive twice

Any link of two ends can do all of it; a switch has a rate and a queue.`,
		Example: "  tabane lab set a rate=15Mbit/s queue=50ms\n  tabane lab set a rate=15Mbit/s queue=500ms discipline=codel ecn=true\n  tabane lab set b rate=30Mbit/s delay=20ms jitter=2ms loss=0.1%\n  tabane lab set b rate=unlimited",
		Args:    arguments(2, -1, "a link and what it does"),
		RunE: func(c *cobra.Command, args []string) error {
			shape, err := parseShape(args[1:])
			if err != nil {
				return &failure{what: "understand the command line", on: strings.Join(args[1:], " "), why: err, do: "see tabane lab set --help"}
			}
			l, err := openLab(c.Context(), "set a link", name)
			if err != nil {
				return err
			}
			if err := l.Links().Set(args[0], shape); err != nil {
				return &failure{what: "set a link", on: args[0], why: err}
			}
			return nil
		},
	}
	labFlag(c, &name)
	return c
}

// parseShape reads what a link does from KEY=VALUE.
func parseShape(args []string) (scenario.Shape, error) {
	var s scenario.Shape
	given := map[string]bool{}
	if len(args) == 0 {
		return s, errors.New("want at least one KEY=VALUE")
	}
	for _, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		read, known := shapeKeys[key]
		switch {
		case !ok:
			return s, fmt.Errorf("want KEY=VALUE, got %q", arg)
		case !known:
			return s, fmt.Errorf("there is no %q; there are %s", key, strings.Join(slices.Sorted(maps.Keys(shapeKeys)), ", "))
		case given[key]:
			return s, fmt.Errorf("%s is given twice", key)
		}
		given[key] = true
		if err := read(&s, value); err != nil {
			return s, fmt.Errorf("%s: %w", key, err)
		}
	}
	if s.Buffer != nil {
		if s.Rate == 0 {
			return s, errors.New("discipline, ecn: need a rate: nothing waits on a link without one")
		}
		s.Buffer.Time, s.Queue = s.Queue, 0
	}
	return s, s.Check().Err()
}

// buffer is the shape's queue in detail.
func buffer(s *scenario.Shape) *channel.Queue {
	if s.Buffer == nil {
		s.Buffer = &channel.Queue{}
	}
	return s.Buffer
}

// parseDiscipline reads NAME, or NAME:PARAMETER,...
func parseDiscipline(q *channel.Queue, value string) (err error) {
	name, rest, detailed := strings.Cut(value, ":")
	parameters := strings.Split(rest, ",")
	q.Discipline = channel.Discipline(name)
	switch {
	case q.Discipline == channel.DropTail && !detailed, q.Discipline == channel.ControlledDelay && !detailed:
	case q.Discipline == channel.ControlledDelay && len(parameters) == 2:
		if q.CoDel.Target, err = positive(parameters[0]); err == nil {
			q.CoDel.Interval, err = positive(parameters[1])
		}
	case q.Discipline == channel.EarlyDrop && len(parameters) == 3:
		if q.RED.Min.Time, err = positive(parameters[0]); err != nil {
			return err
		}
		if q.RED.Max.Time, err = positive(parameters[1]); err == nil {
			q.RED.P, err = probability(parameters[2])
		}
	default:
		return fmt.Errorf("want drop-tail, codel, codel:TARGET,INTERVAL like codel:5ms,100ms, or red:MIN,MAX,P like red:5ms,50ms,10%%, got %q", value)
	}
	return err
}

var shapeKeys = map[string]func(s *scenario.Shape, value string) error{
	"rate": func(s *scenario.Shape, value string) (err error) {
		if value == "unlimited" {
			return nil
		}
		if s.Rate, err = unit.ParseBandwidth(value); err == nil && s.Rate == 0 {
			err = errors.New("must be > 0, or unlimited")
		}
		return err
	},
	"queue": func(s *scenario.Shape, value string) (err error) {
		s.Queue, err = positive(value)
		return err
	},
	"discipline": func(s *scenario.Shape, value string) error { return parseDiscipline(buffer(s), value) },
	"ecn": func(s *scenario.Shape, value string) (err error) {
		if buffer(s).ECN, err = strconv.ParseBool(value); err != nil {
			err = fmt.Errorf("want true or false, got %q", value)
		}
		return err
	},
	"delay": func(s *scenario.Shape, value string) (err error) {
		s.Delay, err = positive(value)
		return err
	},
	"jitter": func(s *scenario.Shape, value string) (err error) {
		s.Jitter = &channel.Jitter{Kind: channel.Uniform}
		if rest, normal := strings.CutPrefix(value, "normal:"); normal {
			s.Jitter.Kind, value = channel.Normal, rest
		}
		s.Jitter.Amount, err = positive(value)
		return err
	},
	"loss": func(s *scenario.Shape, value string) (err error) {
		rest, bursts := strings.CutPrefix(value, "ge:")
		if !bursts {
			s.Loss = &channel.Loss{Kind: channel.Random}
			s.Loss.P, err = probability(value)
			return err
		}
		s.Loss = &channel.Loss{Kind: channel.GilbertElliott, Bad: 1}
		p, r, ok := strings.Cut(rest, ",")
		if !ok {
			return fmt.Errorf("want ge:P,R like ge:1%%,20%%, got %q", value)
		}
		if s.Loss.P, err = probability(p); err == nil {
			s.Loss.R, err = probability(r)
		}
		return err
	},
	"duplicate": func(s *scenario.Shape, value string) (err error) {
		s.Duplicate, err = probability(value)
		return err
	},
}

func positive(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	switch {
	case err != nil:
		return 0, fmt.Errorf("want a duration like 50ms, got %q", value)
	case d <= 0:
		return 0, fmt.Errorf("must be > 0, got %s", d)
	}
	return d, nil
}

// probability reads "1%" or "0.01".
func probability(value string) (float64, error) {
	number, percent := strings.CutSuffix(value, "%")
	p, err := strconv.ParseFloat(number, 64)
	if percent {
		p /= 100
	}
	if err != nil || !(p >= 0 && p <= 1) { // also NaN
		return 0, fmt.Errorf("want a probability like 1%% or 0.01, got %q", value)
	}
	return p, nil
}
