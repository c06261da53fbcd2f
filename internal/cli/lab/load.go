package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/study/content"
)

type loadFlags struct {
	rate                    string
	duration                time.Duration
	services                []string
	seed, siteSeed          uint64
	heavy, mptcp            bool
	http1, json             bool
	certificates, recording string
}

func (a *app) loadCommand() *cobra.Command {
	var f loadFlags
	c := &cobra.Command{
		Use:     "load URL",
		Short:   "Load a site with visits, as browsers request pages",
		GroupID: "tools",
		Long: `Load visits the map and the shop of tabane site: each visit is a task with its pages, their requests in the order in which a browser
makes them, on up to six connections over HTTP/1.1 or one over HTTP/2, and think times between. The visits together request bodies at the
rate. Load reports what was offered and what arrived. Visits are equal for equal seeds.

Exit code 0: all pages that had the time were loaded; 1: some failed, as the report says; 2: it could not run, or was interrupted.`,
		Example: `  tabane load --rate 8Mbit/s --duration 30s http://server
  tabane load --rate 20Mbit/s --mptcp --cacert lab.pem --service shop https://server`,
		Args: cli.Arguments(1, 1, "one URL"),
		RunE: func(c *cobra.Command, args []string) error { return a.load(c.Context(), args[0], f) },
	}
	flags := c.Flags()
	flags.StringVar(&f.rate, "rate", "10Mbit/s", "`rate` of the bodies that are requested")
	flags.DurationVar(&f.duration, "duration", 30*time.Second, "how long to load the site")
	flags.StringSliceVar(&f.services, "service", nil, "map or shop, repeatable (default both)")
	flags.Uint64Var(&f.seed, "seed", 1, "`seed` of the visits")
	flags.Uint64Var(&f.siteSeed, "site-seed", 1, "`seed` of the site, as its file has it")
	flags.BoolVar(&f.heavy, "heavy", false, "visit the services for high-resolution displays")
	flags.BoolVar(&f.mptcp, "mptcp", false, "connect over MPTCP; falls back to TCP when the server has none")
	flags.BoolVar(&f.http1, "http1", false, "use HTTP/1.1 with https as well")
	flags.StringVar(&f.certificates, "cacert", "", "PEM `file` of the certificates to trust (default the system's)")
	flags.BoolVar(&f.json, "json", false, "print the report as JSON")
	flags.StringVarP(&f.recording, "output", "o", "", "also write the report as JSON to this `file`")
	return c
}

func (a *app) load(ctx context.Context, url string, f loadFlags) error {
	o := traffic.LoadOptions{URL: url, Duration: f.duration, Transport: traffic.TCP, HTTP1: f.http1}
	if f.mptcp {
		o.Transport = traffic.MPTCP
	}
	var err error
	if o.Rate, err = unit.ParseBandwidth(f.rate); err != nil {
		return cli.Invalid("--rate", f.rate, "a rate like 10Mbit/s")
	}
	if o.Rate <= 0 {
		return cli.Invalid("--rate", f.rate, "a rate > 0")
	}
	if f.duration <= 0 {
		return cli.Invalid("--duration", f.duration.String(), "a duration > 0")
	}
	var services []content.Service
	for _, name := range f.services {
		if s := content.Service(name); s != content.Map && s != content.Shop {
			return cli.Invalid("--service", name, "map or shop")
		}
		services = append(services, content.Service(name))
	}
	if len(services) == 0 {
		services = content.Services()
	}
	o.Visits = visits(content.New(f.siteSeed).Visits(services, f.heavy, o.Rate, f.seed))
	if f.certificates != "" {
		b, err := os.ReadFile(f.certificates)
		if err != nil {
			return cli.FileFailure("read certificates", f.certificates, err)
		}
		o.Roots = x509.NewCertPool()
		if !o.Roots.AppendCertsFromPEM(b) {
			return &cli.Failure{What: "read certificates", Name: f.certificates, Why: errors.New("it has no certificate in PEM")}
		}
	}
	live := cli.NewLiveLine(a.Err)
	if cli.Width(a.Err) > 0 {
		o.Interval = 100 * time.Millisecond
		o.Progress = live.Rate(o.Interval)
	}
	report, err := traffic.Load(ctx, o)
	live.Clear()
	if err != nil {
		if ctx.Err() != nil {
			err = cli.ErrInterrupted
		}
		return loadFailure(url, err)
	}
	if f.recording != "" {
		if err := cli.WriteReport(f.recording, report); err != nil {
			return err
		}
	}
	if f.json {
		err = json.NewEncoder(a.Out).Encode(report)
	} else {
		err = printLoad(a.Out, report)
	}
	if err == nil && report.Failed > 0 {
		err = cli.ErrUnmet
	}
	return err
}

// visits returns the tasks of a site as visits of a load.
func visits(tasks iter.Seq[content.Visit]) iter.Seq[traffic.Visit] {
	return func(yield func(traffic.Visit) bool) {
		for t := range tasks {
			v := traffic.Visit{Start: t.Start}
			for _, l := range t.Task.Loads {
				page := traffic.Page{Think: l.Think}
				for _, r := range l.Requests {
					page.Requests = append(page.Requests, traffic.Request(r))
				}
				v.Pages = append(v.Pages, page)
			}
			if !yield(v) {
				return
			}
		}
	}
}

func loadFailure(url string, err error) error {
	do := cli.ConnectRemedy(err, "start tabane site, or check the port")
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &certificate):
		do = "trust the site's certificate with --cacert, and use a name that it is for"
	case errors.Is(err, http.ErrSchemeMismatch):
		do = "use http:// for this port"
	}
	if e := errors.Unwrap(err); e != nil && strings.HasPrefix(err.Error(), "load ") {
		err = e // the failure has the verb and the URL
	}
	return &cli.Failure{What: "load", Name: url, Why: err, Do: do}
}

func printLoad(w io.Writer, r traffic.LoadReport) error {
	_, err := fmt.Fprintf(w, "%s requested, %s arrived in %.1f s, of %s configured\n", cli.Megabits(r.OfferedBps), cli.Megabits(r.AchievedBps), r.Duration.Seconds(), r.Rate)
	if err == nil {
		_, err = fmt.Fprintf(w, "%d visits, %d pages, %d requests over %s; %d connections, %d of them over MPTCP\n", r.Visits, r.Pages, r.Requests, r.Protocol, r.Connections, r.MPTCP)
	}
	if err == nil {
		_, err = fmt.Fprintf(w, "first view: median %.1f ms, 95th percentile %.1f ms; step: median %.1f ms, 95th percentile %.1f ms\n",
			1e3*r.FirstView(0.5).Seconds(), 1e3*r.FirstView(0.95).Seconds(), 1e3*r.Step(0.5).Seconds(), 1e3*r.Step(0.95).Seconds())
	}
	if err == nil && r.Failed+r.Skipped+r.Unfinished > 0 {
		_, err = fmt.Fprintf(w, "%d pages failed, %d were loading at the end, %d visits were skipped\n", r.Failed, r.Unfinished, r.Skipped)
	}
	for _, f := range r.Failures {
		if err == nil {
			_, err = fmt.Fprintln(w, "  "+f)
		}
	}
	return err
}
