package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/analysis/capture"
	"github.com/tabane/tabane/internal/analysis/pcap"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/experiment/report"
)

type reseqFlags struct {
	json         bool
	csv, figures string
	connection   int
	idle         time.Duration
	all          bool
	memory       string
}

// reseqShown is the number of connections in the table without --all.
const reseqShown = 10

func (a *app) reseqCommand() *cobra.Command {
	var o reseqFlags
	c := &cobra.Command{
		Use:     "reseq FILE...",
		Short:   "Measure the resequencing of MPTCP in captures",
		GroupID: "tools",
		Long: `Reseq reads captures (pcap or pcapng, also compressed with gzip) and reconstructs the MPTCP connections (version 0
and 1) and TCP connections in them. It reports the subflows and what each carried, retransmissions, reinjections,
resequencing delay, burst lengths and reorder-buffer occupancy. Several files are read as one capture, merged by
their timestamps: one for each path, or one for each side; - is standard input. Capture at the receiver; the first 200 bytes of each
packet are enough, whole packets are needed to verify DSS checksums. Packets inside SRv6, IP in IP,
GRE, ERSPAN, VXLAN and GENEVE are decoded.

What a capture lacks (its start, packets, options) is listed under "missed"; the rest is reported nevertheless.`,
		Example: `  tabane reseq client.pcap
  tabane reseq path1.pcapng.gz path2.pcapng.gz --figures out
  tabane reseq client.pcap --connection 2 --csv out --json
  tabane lab capture client client.pcapng    # until interrupted, then: tabane reseq client.pcapng
  ssh router tcpdump -c 10000 -w - | tabane reseq -`,
		Args: cli.Arguments(1, -1, "one capture file or more"),
		RunE: func(c *cobra.Command, files []string) error {
			if o.connection < 0 || c.Flags().Changed("connection") && o.connection == 0 {
				return cli.Usage(c, fmt.Errorf("--connection must be > 0, got %d", o.connection))
			}
			if o.idle <= 0 {
				return cli.Usage(c, fmt.Errorf("--idle must be > 0, got %v", o.idle))
			}
			memory, err := unit.ParseSize(o.memory)
			if err != nil || memory <= 0 {
				return cli.Usage(c, fmt.Errorf("--sort-memory must be a size > 0 such as 2GB, got %q", o.memory))
			}
			for i, name := range files {
				if name == "-" {
					files[i] = "/dev/stdin"
				}
			}
			return a.reseq(c.Context(), files, o, int(memory))
		},
	}
	f := c.Flags()
	f.BoolVar(&o.json, "json", false, "print the report as JSON; times are in nanoseconds")
	f.StringVar(&o.csv, "csv", "", "write CSV files of connections, subflows, segments, bursts and buffer occupancy into this `directory`")
	f.StringVar(&o.figures, "figures", "", "draw figures (PNG and SVG) of the connections that are shown into this `directory`")
	f.IntVar(&o.connection, "connection", 0, "show only the connection with this `number`")
	f.DurationVar(&o.idle, "idle", capture.DefaultIdle, "shortest time without new data that counts as a gap")
	f.StringVar(&o.memory, "sort-memory", unit.Size(capture.DefaultSortMemory).String(), "largest `size` of the packets held to sort files whose times run backwards")
	f.BoolVar(&o.all, "all", false, fmt.Sprintf("show all connections, not only the %d that carried most", reseqShown))
	return c
}

func (a *app) reseq(ctx context.Context, files []string, o reseqFlags, memory int) error {
	r, err := capture.Read(ctx, files, capture.Options{Record: o.csv != "" || o.figures != "", Idle: o.idle, SortMemory: memory})
	if err != nil {
		return captureFailure(err)
	}
	shown := r.Largest()
	if o.connection > 0 {
		if o.connection > len(r.Connections) {
			return &cli.Failure{What: "find connection", Name: strconv.Itoa(o.connection), Why: fmt.Errorf("there %s", are(len(r.Connections))), Do: "run without --connection to see them"}
		}
		shown = []*capture.Connection{&r.Connections[o.connection-1]}
		r.Connections = []capture.Connection{*shown[0]}
	}
	more := 0
	if !o.all && len(shown) > reseqShown {
		more = len(shown) - reseqShown
		shown = shown[:reseqShown]
	}
	if o.json {
		e := json.NewEncoder(a.Out)
		e.SetIndent("", "  ")
		err = e.Encode(r)
	} else {
		err = printReseq(a.Out, &r, shown, more)
	}
	if err != nil {
		return err
	}
	if o.csv != "" {
		names, err := report.ReseqTables(o.csv, shown)
		if err != nil {
			return cli.FileFailure("write tables to", o.csv, err)
		}
		fmt.Fprintf(a.Err, "%s in %s\n", cli.Quantity(len(names), "table"), o.csv)
	}
	if o.figures != "" {
		names, err := report.ReseqFigures(o.figures, shown)
		if err != nil {
			return cli.FileFailure("draw figures in", o.figures, err)
		}
		fmt.Fprintf(a.Err, "%s in %s\n", cli.Quantity(len(names), "figure"), o.figures)
	}
	return nil
}

func are(n int) string {
	if n == 1 {
		return "is 1 connection"
	}
	return "are " + cli.Quantity(n, "connection")
}

// captureFailure returns the failure for an error of capture.Read.
func captureFailure(err error) error {
	const what = "read capture"
	var file *capture.FileError
	if !errors.As(err, &file) {
		return &cli.Failure{What: what, Why: err}
	}
	do := ""
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EISDIR):
		return cli.FileFailure(what, file.Name, file.Err)
	case errors.Is(err, pcap.ErrEmpty):
		do = "capture again, and stop the capture before reading the file"
	case errors.Is(err, pcap.ErrCompressed):
		do = "decompress it first, or compress it with gzip"
	case errors.Is(err, pcap.ErrNotCapture):
		do = "name a file written by tcpdump, Wireshark or tabane lab capture"
	case errors.Is(err, capture.ErrDisorder):
		do = "sort it first (reordercap FILE SORTED, which comes with Wireshark), or allow more with --sort-memory"
	case errors.Is(err, capture.ErrAgain):
		do = "save it to a file first"
	case errors.Is(err, capture.ErrTwice):
		do = "name each file once"
	}
	return &cli.Failure{What: what, Name: file.Name, Why: file.Err, Do: do}
}

// printReseq prints the report for a terminal.
func printReseq(w io.Writer, r *capture.Report, shown []*capture.Connection, more int) error {
	var b strings.Builder
	var packets uint64
	for _, f := range r.Files {
		packets += f.Packets
	}
	fmt.Fprintf(&b, "%s, %d packets, %d of them TCP, over %s: %s\n", cli.Quantity(len(r.Files), "file"), packets, r.Segments, short(r.Duration), cli.Quantity(len(r.Connections), "connection"))
	for _, c := range shown {
		b.WriteByte('\n')
		writeConnection(&b, c, cli.Width(w))
	}
	if more > 0 {
		fmt.Fprintf(&b, "\n%s carried less and are not shown; --all shows them\n", cli.Quantity(more, "connection"))
	}
	if len(r.Missed) > 0 {
		b.WriteString("\nmissed:\n")
		for _, m := range r.Missed {
			fmt.Fprintf(&b, "  %s\n", m)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeConnection(b *strings.Builder, c *capture.Connection, width int) {
	protocol := "TCP"
	if c.Protocol == "mptcp" {
		protocol = "MPTCP"
		if c.Version >= 0 {
			protocol = fmt.Sprintf("MPTCP v%d", c.Version)
		}
		if c.Fallback != "" {
			protocol += " that fell back to TCP (" + c.Fallback + ")"
		}
	}
	fmt.Fprintf(b, "connection %d: %s, client %s, server %s, %s\n", c.Number, protocol, c.Client, c.Server, cli.Quantity(len(c.Subflows), "subflow"))
	for _, x := range []struct {
		d    *capture.Direction
		side func(*capture.Subflow) *capture.SubflowDirection
		what string
	}{
		{&c.ToClient, func(s *capture.Subflow) *capture.SubflowDirection { return &s.ToClient }, "to the client"},
		{&c.ToServer, func(s *capture.Subflow) *capture.SubflowDirection { return &s.ToServer }, "to the server"},
	} {
		switch {
		case x.d.Segments == 0 && x.d.Unreleased == 0:
			fmt.Fprintf(b, "  %s: no data\n", x.what)
		case x.d.Segments < 10 && x.d.PeakOccupancy.Segments == 0:
			fmt.Fprintf(b, "  %s: %s, %s, all in order\n", x.what, bytesOf(x.d.Bytes), cli.Quantity(int(x.d.Segments), "segment"))
		default:
			fmt.Fprintf(b, "  %s: %s in %s, %s\n", x.what, bytesOf(x.d.Bytes), short(x.d.Last-x.d.First), cli.Megabits(x.d.GoodputBps))
			writeOrder(b, x.d)
			writeSubflows(b, c, x.side, width)
		}
		writeChecksums(b, c, x.d.Checksums, x.side)
	}
	for i, e := range c.Events {
		if i == 5 {
			fmt.Fprintf(b, "  ... %d more events (--json has them)\n", len(c.Events)-5+c.MoreEvents)
			break
		}
		from := "server"
		if e.FromClient {
			from = "client"
		}
		fmt.Fprintf(b, "  at %s, %s on subflow %d: %s\n", short(e.At), from, e.Subflow+1, e.What)
	}
	for _, m := range c.Missed {
		fmt.Fprintf(b, "  missed: %s\n", m)
	}
}

// writeOrder prints the cost of resequencing in one direction.
func writeOrder(b *strings.Builder, d *capture.Direction) {
	const format = "    %-21s%9s%9s%9s%9s%9s  %s\n"
	b.WriteString(strings.TrimRight(fmt.Sprintf(format, "", "mean", "p50", "p95", "p99", "max", ""), " \n") + "\n")
	row := func(name string, x capture.Distribution) {
		fmt.Fprintf(b, format, name, ms(x.Mean), ms(x.P50), ms(x.P95), ms(x.P99), ms(x.Max), "ms")
	}
	row("resequencing delay", d.Delay)
	if d.ConnectionLevel.Count > 0 {
		row("  subflow level", d.SubflowLevel)
		row("  connection level", d.ConnectionLevel)
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	fmt.Fprintf(b, format, "burst", fmt.Sprintf("%.1f", d.Bursts.Mean), n(d.Bursts.P50), n(d.Bursts.P95), n(d.Bursts.P99), n(d.Bursts.Max), "segments")
	fmt.Fprintf(b, format, "reorder buffer", fmt.Sprintf("%.1f", d.MeanOccupancy/1e3), "", "", "", fmt.Sprintf("%.1f", float64(d.PeakOccupancy.Bytes)/1e3), "kB")
	var more []string
	if d.Duplicate > 0 {
		more = append(more, bytesOf(d.Duplicate)+" duplicate")
	}
	if d.LongestGap >= 10*time.Millisecond {
		more = append(more, fmt.Sprintf("longest gap without new data %s, at %.3f s", short(d.LongestGap), d.LongestGapAt.Seconds()))
	}
	if len(more) > 0 {
		fmt.Fprintf(b, "    %s\n", strings.Join(more, "; "))
	}
}

// writeChecksums prints the numbers of correct and wrong checksums, and the packets of wrong ones.
func writeChecksums(b *strings.Builder, c *capture.Connection, n capture.Checksums, side func(*capture.Subflow) *capture.SubflowDirection) {
	if !n.Any() {
		return
	}
	fmt.Fprintf(b, "    checksums of mappings: %d verified, %d wrong, %d not verifiable", n.Verified, n.Wrong, n.Unverifiable)
	if n.Absent > 0 {
		fmt.Fprintf(b, ", %d absent", n.Absent)
	}
	b.WriteByte('\n')
	for i := range c.Subflows {
		s := &c.Subflows[i]
		wrong := side(s).Wrong
		for j, w := range wrong {
			if j == 3 && len(wrong) > 4 {
				fmt.Fprintf(b, "      ... more of subflow %d (--json has %d of them)\n", s.Number, len(wrong))
				break
			}
			fmt.Fprintf(b, "      subflow %d, %v\n", s.Number, w)
		}
	}
}

// writeSubflows writes the table of subflows, in parts where it is wider than width, unless 0.
func writeSubflows(b *strings.Builder, c *capture.Connection, side func(*capture.Subflow) *capture.SubflowDirection, width int) {
	lines := [][]string{{"SUBFLOW", "CLIENT", "SERVER", "VIA", "SHARE", "BYTES", "Mbit/s", "RETRANS", "REORDERED", "REINJECTED", "DUPLICATE", "DELAY", "RTT"}}
	idle := 0
	for i := range c.Subflows {
		s := &c.Subflows[i]
		d := side(s)
		if i >= reseqShown && s.ToClient.Segments == 0 && s.ToServer.Segments == 0 {
			idle++
			continue
		}
		kind := ""
		switch {
		case s.Backup:
			kind = " (backup)"
		case s.Start == "unknown" && c.Protocol == "mptcp":
			kind = " (start not captured)"
		}
		via := "-"
		if len(d.Tunnels) > 0 {
			via = d.Tunnels[0].String()
			if n := len(d.Tunnels); n > 1 {
				via += fmt.Sprintf(" +%d", n-1)
			}
		}
		rtt := "-"
		if s.RTT > 0 {
			rtt = ms(s.RTT) + " ms"
		}
		lines = append(lines, []string{
			strconv.Itoa(s.Number) + kind, s.Client.String(), s.Server.String(), via, fmt.Sprintf("%.1f %%", 100*d.Share), bytesOf(d.Bytes), fmt.Sprintf("%.2f", d.RateBps/1e6),
			strconv.FormatUint(d.Retransmitted.Segments, 10), strconv.FormatUint(d.Reordered.Segments, 10), bytesOf(d.Reinjected), bytesOf(d.DuplicateData), ms(d.Delay.Mean) + " ms", rtt,
		})
	}
	_ = writeColumns(b, lines, 1, width, "    ") // a strings.Builder takes all
	if idle > 0 {
		fmt.Fprintf(b, "    and %s without data\n", cli.Quantity(idle, "subflow"))
	}
}

// ms formats a time in milliseconds, with one or two decimals.
func ms(d time.Duration) string {
	v := d.Seconds() * 1e3
	switch {
	case v == 0:
		return "0"
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

// bytesOf formats an amount of data with at most four digits and its unit.
func bytesOf(n uint64) string {
	switch {
	case n >= 10_000_000_000:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 10_000_000:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 10_000:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	case n == 0:
		return "0"
	}
	return unit.Size(n).String()
}

// short formats a time in seconds or milliseconds.
func short(d time.Duration) string {
	if d < time.Second {
		return ms(d) + " ms"
	}
	return fmt.Sprintf("%.3f s", d.Seconds())
}
