package validate

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/sim"
)

//go:embed ns2.tcl
var ns2Script string

// The connection that both simulate: that of the reference experiments.
const (
	ns2Runs    = 12
	ns2Seconds = 30
	ns2Access  = 10 * time.Millisecond
	ns2Segment = 1340
	ns2Header  = 40
	ns2Initial = 10
)

// ns2 compares a TCP connection with the same in ns-2.
func ns2(b *bench, o Options) func() Part {
	part := Part{
		Title:    "One TCP beside ns-2",
		Question: "Does the simulator agree with the one that the experiments on resequencing were first made with?",
		Method: fmt.Sprintf(`The same connection in both, %d runs each: %d s over a link that loses packets at random, after one without limits and %s of delay; segments of %d bytes and
headers of %d, an acknowledgement for each segment, an initial window of %d. The send window is 40 segments as in the experiments (53.6 kB) and the link has
%s, or the window has no limit and the link has %s. ns-2 runs its `+"`Agent/TCP/FullTcp/Sack`"+`, from which the program of these experiments derives its
subflows. Its script is internal/sim/validate/ns2.tcl. The handshake, which ns-2 makes and the simulator leaves out here, does not count. Each simulator draws its
own losses, so the means differ by chance: z is the difference over its standard error, and |z| is above 2 in one of 22 cells even where nothing differs.`,
			ns2Runs, ns2Seconds, ns2Access, ns2Segment, ns2Header, ns2Initial, ns2Rate(40), ns2Rate(0)),
	}
	part.Answer = `One difference is left out of the table, because it is not of the same kind. Where a window without limit meets a link of 10 Mbit/s, a queue of
a second builds up in slow start, and ns-2 has more timeouts and less throughput. They come from how the retransmission timeout is bounded: in ns-2 it is at least
200 ms (RFC 6298, rule 2.4, with a smaller bound), here at least 200 ms more than the smoothed round trip time, as in Linux. With ns-2's bound
(sim.Connection.MinRTO of next to nothing, where SRTT alone is longer than that) the simulator has as many timeouts as ns-2 and the same throughput.
Acknowledgements arrive late there rather than never, so Linux' bound is the better one.`
	program := o.NS2
	if program == "" {
		program = "ns"
	}
	program, err := exec.LookPath(program)
	if err != nil {
		part.Missing = "ns-2 is not installed (on Debian: `apt-get install ns2`)"
		return func() Part { return part }
	}

	type cell struct {
		loss         float64
		delay        time.Duration
		window       int
		ours, theirs *sample
	}
	losses := []float64{0, 1e-4, 1e-3, 3e-3, 1e-2}
	delays := []time.Duration{20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond}
	if o.Quick {
		losses, delays = []float64{1e-3, 1e-2}, delays[1:2]
	}
	var cells []*cell
	for _, window := range []int{40, 0} {
		for _, loss := range losses {
			if window == 0 && loss < 1e-3 {
				continue // the queue would lose too, and what is compared is how losses are repaired
			}
			for _, delay := range delays {
				c := &cell{loss: loss, delay: delay, window: window, theirs: &sample{}}
				c.ours = b.repeat(ns2Runs, func(seed uint64) sim.Config { return ns2Config(seed, loss, delay, window) }, func(r *sim.Result) float64 {
					return megabits(float64(r.Connections[0].Delivered), ns2Seconds*time.Second)
				})[0]
				b.jobs = append(b.jobs, func(ctx context.Context) error {
					values, err := runNS2(ctx, program, loss, delay, window)
					c.theirs.values = values
					return err
				})
				cells = append(cells, c)
			}
		}
	}
	return func() Part {
		t := Table{Caption: "Throughput, Mbit/s of payload",
			Head: []string{"loss", "delay", "window", "n", "tabane ± sd", "ns-2 ± sd", "difference", "z", "within 2 standard errors"}}
		off := 0
		for _, c := range cells {
			difference := c.ours.mean()/c.theirs.mean() - 1
			spread := math.Hypot(c.ours.standardError(), c.theirs.standardError())
			fits, shown := math.Abs(difference) <= exact, "–"
			if spread > 1e-9 { // without losses there is no chance
				z := (c.ours.mean() - c.theirs.mean()) / spread
				fits, shown = fits || math.Abs(z) <= 2, fmt.Sprintf("%+.1f", z)
			}
			if !fits {
				off++
			}
			window := "40"
			if c.window == 0 {
				window = "no limit"
			}
			t.Rows = append(t.Rows, []string{fmt.Sprintf("%g", c.loss), c.delay.String(), window, fmt.Sprint(c.ours.n()), c.ours.String(), c.theirs.String(),
				fmt.Sprintf("%+.1f %%", 100*difference), shown, verdict(fits)})
		}
		part.Tables = []Table{t}
		part.Claims = []Claim{{
			Text:  fmt.Sprintf("each mean is within 2 standard errors of ns-2's, or within %.1f %%", 100*exact),
			Got:   fmt.Sprintf("%d of %d cells outside", off, len(cells)),
			Holds: off == 0,
		}}
		return part
	}
}

// exact is the tolerance without randomness: the data in flight at the end.
const exact = 0.005

func ns2Config(seed uint64, loss float64, delay time.Duration, window int) sim.Config {
	n := newNetwork(seed, ns2Seconds*time.Second)
	access := n.link(linkmodel.Profile{Rate: unit.GbitPerSecond, Delay: ns2Access, Queue: linkmodel.Queue{Limit: linkmodel.Limit{Packets: 100_000}}})
	bottleneck := linkmodel.Profile{Rate: ns2Rate(window), Delay: delay, Queue: linkmodel.Queue{Limit: linkmodel.Limit{Packets: 100_000}}}
	if loss > 0 {
		bottleneck.Loss = linkmodel.Loss{Kind: linkmodel.Random, P: loss}
	}
	path := n.path(ns2Access+delay, access, n.link(bottleneck))
	n.config.Connections = []sim.Connection{{
		Name: "tcp", Paths: []sim.Path{path}, Congestion: "newreno", Segment: ns2Segment, Header: ns2Header,
		Window: unit.Size(window * ns2Segment), InitialWindow: ns2Initial,
	}}
	return n.config
}

// ns2Rate returns the rate of the link: that of the experiments, or without a window one that is
// high enough for no queue.
func ns2Rate(window int) unit.Bandwidth {
	if window == 0 {
		return unit.GbitPerSecond
	}
	return 10 * unit.MbitPerSecond
}

// runNS2 returns the throughput of each run in Mbit/s.
func runNS2(ctx context.Context, program string, loss float64, delay time.Duration, window int) ([]float64, error) {
	rate := ns2Rate(window)
	if window == 0 {
		window = 100_000
	}
	script, err := writeScript()
	if err != nil {
		return nil, err
	}
	defer os.Remove(script)
	arguments := []string{script}
	for _, v := range []any{ns2Runs, ns2Seconds, int64(rate), delay.Seconds(), loss, ns2Segment, ns2Header, window, ns2Initial, ns2Access.Seconds()} {
		arguments = append(arguments, fmt.Sprint(v))
	}
	cmd := exec.CommandContext(ctx, program, arguments...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("run ns-2 %q: %w: %s", program, err, firstLine(stderr.String()))
	}
	return parseNS2(out.String())
}

// writeScript writes the script to a file: ns-2 ignores errors in a script on standard input.
func writeScript() (name string, err error) {
	f, err := os.CreateTemp("", "tabane-ns2-*.tcl")
	if err != nil {
		return "", fmt.Errorf("write the script of ns-2: %w", err)
	}
	_, err = f.WriteString(ns2Script)
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(f.Name())
		return "", fmt.Errorf("write the script of ns-2: %w", err)
	}
	return f.Name(), nil
}

// parseNS2 parses the output of the script.
func parseNS2(out string) ([]float64, error) {
	fields := strings.Fields(out)
	if len(fields) != ns2Runs {
		return nil, fmt.Errorf("read the output of ns-2: want %d numbers, got %q", ns2Runs, firstLine(out))
	}
	values := make([]float64, len(fields))
	for i, f := range fields {
		v, err := strconv.ParseFloat(f, 64)
		if err == nil && !(v >= 0 && v < 1e15) {
			err = errors.New("is not a number of bytes")
		}
		if err != nil {
			return nil, fmt.Errorf("read the output of ns-2: %q: %w", f, err)
		}
		values[i] = megabits(v, ns2Seconds*time.Second)
	}
	return values, nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
