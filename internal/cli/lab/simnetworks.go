package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/sim/networks"
	"github.com/tabane/tabane/internal/sim/simrun"
)

// leastConnections is what the columns of the table need. A run with links takes seconds.
const leastConnections, defaultLinkRuns, defaultLinkNetworks = 101, 5, 200

// What flags have by default.
const (
	defaultConnections = 400
	defaultExplore     = 0.1
)

type simNetworksFlags struct {
	many, runs, connections, changeEvery, links, servers, spray, clients int
	seed                                                                 uint64
	explore                                                              float64
	pairs, short                                                         bool
	objects                                                              int
	start                                                                string
}

func (a *app) simNetworks() *cobra.Command {
	var f simNetworksFlags
	c := &cobra.Command{
		Use:   "networks",
		Short: "Simulate what the delivery mode auto makes of client networks",
		Long: `Networks simulates the bulk connections of client networks in which the modes of delivery bring more or less than the best path, and
lets edge.delivery's mode auto decide. It prints what was lost against the best mode of each network (docs/delivery-measured.md): in the
connections 1 to 20, 21 to 100 and beyond; the share of runs that are within 5 % of the best mode in the 21st and 101st connection; the
share of bytes that were carried to compare modes, and what that lost; and the changes of mode in 100 connections.

The nine networks are as in paper A, Table 4: multipath helps, does nothing or does harm. With --many, networks are drawn, and drawn
again after --change-every connections in the mean. A second table has what auto brought in a network as a multiple of the better of two
single paths, the server finding out which one that is: the distribution over all networks. With --short, connections end before two
modes can be compared inside one, and come one at a time.

With --objects, all connections of drawn networks (200, unless --many says otherwise) carry an object of that many kB in the median, one
each 0.05 to 5 s. It prints how long objects take in an hour, as a multiple of what they take over the better of two paths, and the share
that was carried to compare modes: the distribution over all networks.

With --links, drawn networks (200, unless --many says otherwise) share egress links of limited capacity at --servers servers, with a
connection a minute at each. What they want rises and falls by 40 %, to 65 % of the capacity of all links, and half of the best paths lead
through one link. It prints for the best path, for auto without and with the loads that border routers report: the share of the bytes on
a mode within 5 % of the best; what networks got of what their best modes would have brought if all had room; the bytes beyond the
capacity of links; the share of the time that links were above 90 % and at 100 %; and how often in an hour a network at a server changed
its mode, and left a full link or returned to it.

With --spray, downloads to drawn networks with two to four paths are simulated packet by packet, over each path alone and sprayed over
all of them by the decisions of the mode spray. It prints what they bring compared with the first path, and with the best one: the
distribution, and the share of networks with 0.98 or more. The first row repeats the first path alone with other random numbers. With
--pairs, they have two paths of 5 to 100 Mbit/s, the second one up to 40 ms longer, a fifth of which deliver in slots, and the first two
tables follow for the same networks: what auto makes of them, which sprays nothing. With --clients, downloads to that many client networks
at once share the paths, and know nothing of each other: the table has what all together bring, what the least one has of the median, and
how long short ones take beside them.`,
		Example: `  tabane sim networks
  tabane sim networks --start best --explore 0.05
  tabane sim networks --many 200 --change-every 150 --runs 1
  tabane sim networks --many 200 --short
  tabane sim networks --objects 100
  tabane sim networks --links 4 --change-every 150
  tabane sim networks --spray 200
  tabane sim networks --spray 100 --pairs
  tabane sim networks --spray 100 --pairs --clients 5`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			return a.simulateNetworks(c, f)
		},
	}
	flags := c.Flags()
	flags.IntVar(&f.many, "many", 0, "draw `n` networks instead of the nine")
	flags.IntVar(&f.runs, "runs", 60, fmt.Sprintf("number of runs, with a seed each; with --links %d", defaultLinkRuns))
	flags.IntVar(&f.connections, "connections", defaultConnections, "bulk connections of each network")
	flags.IntVar(&f.changeEvery, "change-every", 0, "draw what the modes of a network bring again after `n` connections in the mean; 0: never")
	flags.Float64Var(&f.explore, "explore", defaultExplore, "`share` of the bytes that may be carried to compare modes")
	flags.StringVar(&f.start, "start", "multipath", "`mode` of networks that nothing is known of: multipath or best")
	flags.IntVar(&f.links, "links", 0, "have networks share `n` egress links of limited capacity")
	flags.IntVar(&f.servers, "servers", 10, "number of servers that share the links")
	flags.IntVar(&f.spray, "spray", 0, "simulate downloads to `n` drawn networks packet by packet, each path alone and sprayed")
	flags.IntVar(&f.clients, "clients", 0, "have downloads to `n` client networks at once share the paths (with --spray)")
	flags.BoolVar(&f.pairs, "pairs", false, "draw networks with two paths as those of egress peers (with --spray)")
	flags.BoolVar(&f.short, "short", false, "have connections be too short to compare modes inside one")
	flags.IntVar(&f.objects, "objects", 0, "have all connections carry objects of `n` kB in the median")
	flags.Uint64Var(&f.seed, "seed", simrun.FirstSeed, "`seed` of the first run")
	return c
}

// check returns a usage error for flags that are wrong or do not fit together.
func (f simNetworksFlags) check(c *cobra.Command) error {
	switch {
	case f.runs < 1 || f.runs > 10_000 || f.many < 0 || f.many > 10_000:
		return cli.Usage(c, fmt.Errorf("--runs must be from 1 and --many from 0 to 10000, got %d and %d", f.runs, f.many))
	case f.connections < leastConnections || f.connections > 100_000:
		return cli.Usage(c, fmt.Errorf("--connections must be from %d to 100000, got %d", leastConnections, f.connections))
	case f.changeEvery < 0:
		return cli.Usage(c, fmt.Errorf("--change-every must not be negative, got %d", f.changeEvery))
	case !(f.explore >= 0 && f.explore <= 1):
		return cli.Usage(c, fmt.Errorf("--explore must be from 0 to 1, got %g", f.explore))
	case f.start != "multipath" && f.start != string(belief.Best):
		return cli.Usage(c, fmt.Errorf("--start must be multipath or best, got %q", f.start))
	case f.links != 0 && (f.links < 2 || f.links > belief.MaxModes-1):
		return cli.Usage(c, fmt.Errorf("--links must be from 2 to %d, got %d", belief.MaxModes-1, f.links))
	case f.servers < 1 || f.servers > 1000:
		return cli.Usage(c, fmt.Errorf("--servers must be from 1 to 1000, got %d", f.servers))
	case f.links == 0 && c.Flags().Changed("servers"):
		return cli.Usage(c, errors.New("--servers needs --links"))
	case f.links != 0 && c.Flags().Changed("start"):
		return cli.Usage(c, errors.New("with --links, networks start with the best path"))
	case f.clients < 0 || f.clients > 1000:
		return cli.Usage(c, fmt.Errorf("--clients must be from 0 to 1000, got %d", f.clients))
	case f.pairs && f.spray == 0:
		return cli.Usage(c, errors.New("--pairs needs --spray"))
	case f.clients != 0 && f.spray == 0:
		return cli.Usage(c, errors.New("--clients needs --spray"))
	case f.short && (f.spray > 0 || f.links > 0):
		return cli.Usage(c, errors.New("--short goes with neither --spray nor --links"))
	case f.objects < 0 || f.objects > 1000:
		return cli.Usage(c, fmt.Errorf("--objects must be from 1 to 1000, got %d", f.objects))
	case f.objects > 0 && (f.short || f.spray > 0 || f.links > 0):
		return cli.Usage(c, errors.New("--objects goes with none of --short, --spray and --links"))
	case f.objects > 0 && slices.ContainsFunc([]string{"runs", "connections", "change-every", "start"}, c.Flags().Changed):
		return cli.Usage(c, errors.New("--objects goes with none of --runs, --connections, --change-every and --start: each network has one hour, and begins with the best path"))
	case f.spray < 0 || f.spray > 10_000:
		return cli.Usage(c, fmt.Errorf("--spray must be from 0 to 10000, got %d", f.spray))
	case f.spray > 0 && f.links > 0:
		return cli.Usage(c, errors.New("give --spray or --links, not both"))
	case f.spray > 0 && slices.ContainsFunc([]string{"runs", "many", "connections", "change-every", "explore", "start"}, c.Flags().Changed):
		return cli.Usage(c, errors.New("--spray goes with none of --runs, --many, --connections, --change-every, --explore and --start: each network has one download of each kind"))
	}
	return nil
}

// simulateNetworks simulates what the flags say, and prints it.
func (a *app) simulateNetworks(c *cobra.Command, f simNetworksFlags) error {
	if f.spray > 0 {
		o := simrun.SprayOptions{Seed: f.seed, Count: f.spray, Pairs: f.pairs, Packets: sprayPackets}
		if f.clients > 0 {
			return a.simSeveral(c.Context(), o, f.clients)
		}
		return a.simSpray(c.Context(), o)
	}
	if f.links > 0 {
		if !c.Flags().Changed("runs") {
			f.runs = defaultLinkRuns
		}
		return a.simLinks(c.Context(), f.runs, networks.LinkOptions{
			Seed: f.seed, Networks: cmp.Or(f.many, defaultLinkNetworks), Servers: f.servers, Links: f.links,
			Length: time.Duration(f.connections) * time.Minute, ChangeEvery: time.Duration(f.changeEvery) * time.Minute, Explore: f.explore,
		})
	}
	if f.objects > 0 {
		all, err := networks.RunObjects(c.Context(), networks.ObjectOptions{
			Seed: f.seed, Networks: cmp.Or(f.many, defaultObjectNetworks), Size: 1000 * float64(f.objects), Length: time.Hour, Explore: f.explore,
		})
		if err != nil {
			return &cli.Failure{What: "simulate networks", Why: cli.ErrInterrupted}
		}
		return a.printObjects(all)
	}
	kinds := networks.Nine
	if f.many > 0 {
		kinds = networks.Many(f.many, rand.New(rand.NewPCG(f.seed, 0)))
	}
	var all [][]networks.Network
	for i := range f.runs {
		if c.Context().Err() != nil {
			return &cli.Failure{What: "simulate networks", Why: errors.New("interrupted")}
		}
		all = append(all, networks.Run(kinds, networks.Options{
			Seed: f.seed + uint64(i), Connections: f.connections, ChangeEvery: f.changeEvery, Explore: f.explore, Start: belief.Mode(f.start), Short: f.short,
		}))
	}
	if err := a.printNetworks(networks.Summarize(all), f.many == 0); err != nil {
		return err
	}
	return a.printOverSingle(networks.OverSingle(all))
}

// defaultObjectNetworks is the number of networks with --objects.
const defaultObjectNetworks = 200

// printObjects prints the distributions of how long small objects take.
func (a *app) printObjects(all []networks.Objects) error {
	lines := [][]string{{"TIME OF AN OBJECT, BY THAT OVER THE BETTER PATH", "MEDIAN", "95 %", "MOST", "MEAN"}}
	for _, row := range []struct {
		title string
		of    func(networks.Objects) float64
	}{
		{"best path", func(o networks.Objects) float64 { return o.Best }},
		{"the worse path", func(o networks.Objects) float64 { return o.Worse }},
		{"auto, the first 10 minutes", func(o networks.Objects) float64 { return o.First }},
		{"auto, after that", func(o networks.Objects) float64 { return o.Rest }},
		{"share in other modes", func(o networks.Objects) float64 { return o.Tried }},
		{"changes of mode", func(o networks.Objects) float64 { return float64(o.Changes) }},
	} {
		var values []float64
		sum := 0.
		for _, o := range all {
			values = append(values, row.of(o))
			sum += row.of(o)
		}
		line := []string{row.title}
		for _, p := range []float64{0.5, 0.95, 1} {
			q, err := stat.Quantile(p, values)
			if err != nil {
				return err
			}
			line = append(line, fmt.Sprintf("%.3f", q))
		}
		lines = append(lines, append(line, fmt.Sprintf("%.3f", sum/float64(len(values)))))
	}
	return writeColumns(a.Out, lines, 1, cli.Width(a.Out), "")
}

// simLinks simulates networks that share links, and prints a table.
func (a *app) simLinks(ctx context.Context, runs int, o networks.LinkOptions) error {
	lines := [][]string{{"NETWORKS BY", "ON BEST MODE", "BROUGHT", "OVER CAPACITY", "LINKS ABOVE 90 %", "AT 100 %", "CHANGES", "MOVES"}}
	for _, policy := range networks.Policies() {
		var all []networks.LinkResult
		for i := range runs {
			if ctx.Err() != nil {
				return &cli.Failure{What: "simulate networks", Why: errors.New("interrupted")}
			}
			run := o
			run.Policy, run.Seed = policy, o.Seed+uint64(i)
			all = append(all, networks.RunLinks(run))
		}
		mean, worst := networks.MeanLinks(all)
		for i, r := range []networks.LinkResult{mean, worst} {
			name := []string{"mean", "worst"}[i]
			lines = append(lines, []string{fmt.Sprintf("%s, %s", policy, name), share(r.Best, 1), share(r.Brought, 1), share(r.Over, 2), share(r.Full, 1),
				share(r.Overloaded, 2), fmt.Sprintf("%.2f", r.Changes), fmt.Sprintf("%.2f", r.Moves)})
		}
	}
	return writeColumns(a.Out, lines, 1, cli.Width(a.Out), "")
}

// sprayPackets bounds the packets of a download: 200 networks take some minutes.
const sprayPackets = 8000

// leastSprayed is the goal of spraying compared with a path alone.
const leastSprayed = 0.98

// simSpray simulates downloads that are sprayed, and prints a table.
func (a *app) simSpray(ctx context.Context, o simrun.SprayOptions) error {
	list, err := simrun.Spray(ctx, o)
	if err != nil {
		return &cli.Failure{What: "simulate networks", Why: err}
	}
	if err := a.printDistributions(distributions(list, simrun.SprayedRatios())); err != nil || !o.Pairs {
		return err
	}
	return a.simAutoOver(list, o.Seed)
}

// simSeveral simulates downloads to several client networks at once, and prints a table.
func (a *app) simSeveral(ctx context.Context, o simrun.SprayOptions, clients int) error {
	list, err := simrun.SpraySeveral(ctx, o, clients)
	if err != nil {
		return &cli.Failure{What: "simulate networks", Why: err}
	}
	return a.printDistributions(distributions(list, simrun.SeveralRatios()))
}

// distribution is a row of a table.
type distribution struct {
	title string
	all   []float64
}

// distributions returns the rows of ratios in a list of networks, without those where what something
// is compared with brought nothing.
func distributions[T any](list []T, ratios []simrun.Ratio[T]) (rows []distribution) {
	for _, r := range ratios {
		d := distribution{title: r.Title}
		for _, network := range list {
			if v := r.Of(network); !math.IsNaN(v) && !math.IsInf(v, 0) {
				d.all = append(d.all, v)
			}
		}
		rows = append(rows, d)
	}
	return rows
}

// printDistributions prints a table of downloads.
func (a *app) printDistributions(rows []distribution) error {
	lines := [][]string{{"DOWNLOADS", "LEAST", "1 %", "5 %", "MEDIAN", "95 %", "MEAN", fmt.Sprintf(">= %v", leastSprayed)}}
	for _, r := range rows {
		if len(r.all) == 0 {
			return &cli.Failure{What: "simulate networks", Why: errors.New("no path alone carries anything")}
		}
		line := []string{r.title}
		for _, p := range []float64{0, 0.01, 0.05, 0.5, 0.95} {
			q, err := stat.Quantile(p, r.all)
			if err != nil {
				return err
			}
			line = append(line, fmt.Sprintf("%.3f", q))
		}
		met, sum := 0, 0.0
		for _, v := range r.all {
			sum += v
			if v >= leastSprayed {
				met++
			}
		}
		lines = append(lines, append(line, fmt.Sprintf("%.3f", sum/float64(len(r.all))), share(float64(met)/float64(len(r.all)), 0)))
	}
	return writeColumns(a.Out, lines, 1, cli.Width(a.Out), "")
}

// simAutoOver simulates what auto makes of networks whose paths bring as much as was simulated over
// each of them alone, to clients without MPTCP, and prints the tables.
func (a *app) simAutoOver(list []simrun.Sprayed, seed uint64) error {
	// As the median of networks.Many.
	const between, within = 0.2, 0.075
	var kinds []networks.Kind
	for _, s := range list {
		kinds = append(kinds, networks.Kind{Name: s.World.Name(), Single: s.Alone[1]/s.Alone[0] - 1, Between: between, Within: within})
	}
	all := [][]networks.Network{networks.Run(kinds, networks.Options{Seed: seed, Connections: defaultConnections, Explore: defaultExplore, Start: belief.Best})}
	fmt.Fprintln(a.Out)
	if err := a.printNetworks(networks.Summarize(all), false); err != nil {
		return err
	}
	return a.printOverSingle(networks.OverSingle(all))
}

// printOverSingle prints the distribution of sorted values.
func (a *app) printOverSingle(all []float64) error {
	fmt.Fprintln(a.Out)
	line := []string{fmt.Sprint(len(all), " networks")}
	for _, p := range []float64{0, 0.01, 0.05, 0.5, 0.95} {
		q, err := stat.Quantile(p, all)
		if err != nil {
			return err
		}
		line = append(line, fmt.Sprintf("%.3f", q))
	}
	return writeColumns(a.Out, [][]string{{"AGAINST THE BETTER SINGLE PATH", "LEAST", "1 %", "5 %", "MEDIAN", "95 %"}, line}, 1, cli.Width(a.Out), "")
}

// printNetworks prints a table of networks, or of their mean and worst alone.
func (a *app) printNetworks(list []networks.Summary, each bool) error {
	rows := []networks.Summary{networks.Mean(list), networks.Worst(list)}
	if each {
		rows = append(list, rows...)
	}
	lines := [][]string{{"NETWORK", "LOST 1-20", "21-100", "101-", "WITHIN 5 % AT 21", "AT 101", "TRIED", "LOST BY IT", "CHANGES"}}
	for _, s := range rows {
		lines = append(lines, []string{s.Name, share(s.First, 1), share(s.Next, 1), share(s.Rest, 1), share(s.Within20, 0), share(s.Within100, 0), share(s.Tried, 1),
			share(s.Exploring, 1), fmt.Sprintf("%.1f", s.Changes)})
	}
	return writeColumns(a.Out, lines, 1, cli.Width(a.Out), "")
}

// share formats a share in percent.
func share(v float64, decimals int) string { return fmt.Sprintf("%.*f %%", decimals, 100*v) }
