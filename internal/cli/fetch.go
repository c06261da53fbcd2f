package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
)

// Redraw is the interval at which a live line is redrawn.
const Redraw = 250 * time.Millisecond

type fetchFlags struct {
	mptcp, upload   bool
	datagram        int
	objects         int
	newConnections  bool
	congestion      string
	interval, limit time.Duration
	after           time.Duration
	json            bool
	progress        string
	output          string
}

func (a *App) fetchCommand() *cobra.Command {
	var f fetchFlags
	c := &cobra.Command{
		Use:     "fetch URL",
		Short:   "Fetch content and measure how it arrives",
		GroupID: "tools",
		Long: `Fetch gets a URL on one connection, discards the content and measures at the receiver: goodput, goodput over time, and the
longest gap. With --upload it sends that content to the server, which measures. With --datagram a constant bit rate is sent as numbered
UDP datagrams, and the receiver counts those that are lost, reordered and duplicated. With --objects it gets the URL that many times, one
after the other, and measures each.`,
		Example: `  tabane fetch --mptcp http://server/bytes/100000000
  tabane fetch --limit 10s --json 'http://server/cbr?rate=25Mbit/s&duration=30s'
  tabane fetch --upload --limit 10s http://server/bytes/1GB
  tabane fetch --objects 100 --mptcp http://server/bytes/50kB
  tabane fetch --datagram 1000 'http://server/cbr?rate=6Mbit/s&duration=30s'`,
		Args: Arguments(1, 1, "one URL"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.fetch(c.Context(), args[0], f)
		},
	}
	flags := c.Flags()
	flags.BoolVar(&f.mptcp, "mptcp", false, "connect over MPTCP; falls back to TCP when the server has none")
	flags.BoolVar(&f.upload, "upload", false, "send the content to the server")
	flags.IntVar(&f.datagram, "datagram", 0, "payload in `bytes` of the UDP datagrams that carry a constant bit rate; the server must reach this host's UDP ports, unless with --upload")
	flags.DurationVar(&f.after, "after", 0, "with --datagram, how long after the request the server sends the first one; what is measured begins then")
	flags.IntVar(&f.objects, "objects", 0, "get the URL `n` times, one after the other")
	flags.BoolVar(&f.newConnections, "new-connections", false, "get each object on a new connection")
	flags.StringVar(&f.congestion, "congestion", "", "congestion `control` that the server is to use, as the kernel names it")
	flags.DurationVar(&f.interval, "interval", 100*time.Millisecond, "length of the intervals that bytes are counted in")
	flags.DurationVar(&f.limit, "limit", 0, "end the fetch this long after the request; also the timeout of the connection (default: fetch everything)")
	flags.BoolVar(&f.json, "json", false, "print the report as JSON, on the last line")
	flags.StringVar(&f.progress, "progress", "auto", "auto: a live line on a terminal; json: one JSON object a line, {\"accepted\":true} with --after, {\"sample\":...} for each interval and {\"report\":...} at the end; none")
	flags.StringVarP(&f.output, "output", "o", "", "also write the report as JSON to this `file`")
	return c
}

func (a *App) fetch(ctx context.Context, url string, f fetchFlags) error {
	o := traffic.FetchOptions{URL: url, Transport: traffic.TCP, Interval: f.interval, Limit: f.limit, Upload: f.upload, Datagram: f.datagram, After: f.after, Objects: f.objects, NewConnections: f.newConnections, Congestion: f.congestion}
	if f.mptcp {
		o.Transport = traffic.MPTCP
	}
	if err := FetchFlags(o); err != nil {
		return err
	}
	lines := json.NewEncoder(a.Out)
	live := NewLiveLine(a.Err)
	switch {
	case f.progress == "json":
		// When the reader exits, SIGPIPE ends the process, as with any filter.
		o.Progress = func(s traffic.Sample) { _ = lines.Encode(traffic.FetchLine{Sample: &s}) }
		if o.After > 0 {
			o.Accepted = func() { _ = lines.Encode(traffic.FetchLine{Accepted: true}) }
		}
	case f.progress == "auto" && Width(a.Err) > 0:
		o.Progress = live.Rate(f.interval)
	case f.progress != "auto" && f.progress != "none":
		return Invalid("--progress", f.progress, "auto, json or none")
	}

	report, err := traffic.Fetch(ctx, o)
	live.Clear()
	if err != nil {
		if ctx.Err() != nil {
			err = ErrInterrupted
		}
		return fetchFailure(url, err)
	}
	if f.output != "" {
		if err := WriteReport(f.output, report); err != nil {
			return err
		}
	}
	switch {
	case f.progress == "json":
		return lines.Encode(traffic.FetchLine{Report: &report})
	case f.json:
		return lines.Encode(report)
	}
	return printReport(a.Out, report)
}

// WriteReport writes a report as JSON to a file.
func WriteReport(name string, report any) error {
	b, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(name, append(b, '\n'), 0o644); err != nil {
		return FileFailure("write report", name, err)
	}
	return nil
}

// ConnectRemedy returns the remedy for a failure to connect, empty if the cause is another one.
// refused is that of a closed port.
func ConnectRemedy(err error, refused string) string {
	var name *net.DNSError
	var late net.Error
	switch {
	case errors.As(err, &name): // before the routes, which may be missing to the resolver
		return "check the name and the resolver"
	case errors.Is(err, syscall.ECONNREFUSED):
		return refused
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "check the routes to it"
	case errors.As(err, &late) && late.Timeout():
		return "check the address, the server, and the filters on the way"
	}
	return ""
}

func fetchFailure(url string, err error) error {
	// The failure already has the verb and the URL.
	if e := errors.Unwrap(err); e != nil && strings.HasPrefix(err.Error(), "fetch ") {
		err = e
	}
	return &Failure{What: "fetch", Name: url, Why: err, Do: ConnectRemedy(err, "start the server, or check the port")}
}

func printReport(w io.Writer, r traffic.Report) error {
	transport := "TCP"
	switch d := r.Datagrams; {
	case d != nil:
		transport = fmt.Sprintf("UDP, %d of %d datagrams", d.Received-d.Duplicates, d.Sent)
	case r.UsedMPTCP:
		transport = "MPTCP"
	case r.Fallback:
		transport = "TCP (the server, or this host, has no MPTCP)"
	}
	_, err := fmt.Fprintf(w, "%d bytes in %.3f s: %s over %s\nfirst byte after %.1f ms, longest gap %.1f ms, empty intervals %d\n",
		r.Bytes, r.Duration.Seconds(), Megabits(r.GoodputBps), transport,
		1e3*r.FirstByte.Seconds(), 1e3*r.LongestGap.Seconds(), r.EmptyIntervals)
	if n := len(r.Objects); n > 0 && err == nil {
		_, err = fmt.Fprintf(w, "%d objects: median %.1f ms, 95th percentile %.1f ms\n", n, 1e3*r.ObjectTime(0.5).Seconds(), 1e3*r.ObjectTime(0.95).Seconds())
	}
	if d := r.Datagrams; d != nil && err == nil {
		late := ""
		if d.DelayP95 != 0 {
			late = fmt.Sprintf(", 95 %% within %.1f ms above the least delay", 1e3*(d.DelayP95-d.LeastDelay).Seconds())
		}
		_, err = fmt.Fprintf(w, "%d reordered, by %d at most, %d duplicates%s\n", d.Reordered, d.Behind, d.Duplicates, late)
	}
	return err
}

func Megabits(bps float64) string { return fmt.Sprintf("%.2f Mbit/s", bps/1e6) }

// RateMeter computes the rate over the last second.
type RateMeter struct {
	total  int64
	bytes  []int64
	length time.Duration
}

func (m *RateMeter) Add(bytes int64, interval time.Duration) {
	m.total += bytes
	m.bytes, m.length = append(m.bytes, bytes), interval
	if most := int(max(1, time.Second/interval)); len(m.bytes) > most {
		m.bytes = m.bytes[len(m.bytes)-most:]
	}
}

// Empty reports whether nothing was added.
func (m *RateMeter) Empty() bool { return len(m.bytes) == 0 }

// Rate returns the rate in bit/s.
func (m *RateMeter) Rate() float64 {
	var sum int64
	for _, b := range m.bytes {
		sum += b
	}
	if len(m.bytes) == 0 {
		return 0
	}
	return float64(sum) * 8 / (time.Duration(len(m.bytes)) * m.length).Seconds()
}

// liveLine is a line on a terminal that is overwritten.
type liveLine struct {
	w     io.Writer
	last  time.Time
	shown bool
}

// NewLiveLine returns a line on the terminal w.
func NewLiveLine(w io.Writer) *liveLine { return &liveLine{w: w} }

// Show shows a text, unless the line was drawn just before.
func (l *liveLine) Show(text string) {
	if time.Since(l.last) < Redraw {
		return
	}
	l.last, l.shown = time.Now(), true
	fmt.Fprintf(l.w, "\r\x1b[K%s", text)
}

// Rate returns a function that shows the bytes so far and the rate of the last second.
func (l *liveLine) Rate(interval time.Duration) func(traffic.Sample) {
	meter := &RateMeter{}
	return func(s traffic.Sample) {
		meter.Add(s.Bytes, interval)
		l.Show(fmt.Sprintf("%6.1f s  %9s  %s", s.At.Seconds(), unit.Size(meter.total)/1000*1000, Megabits(meter.Rate())))
	}
}

// Clear removes the line.
func (l *liveLine) Clear() {
	if l.shown {
		fmt.Fprint(l.w, "\r\x1b[K")
	}
}
