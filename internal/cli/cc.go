package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/mptcp/congestion"
)

func (a *App) ccCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "cc",
		Short:   "Load congestion controls for MPTCP and TCP into the kernel",
		GroupID: "tools",
		Long: `Cc loads congestion controls as eBPF programs (struct_ops) under the names tabane_lia, tabane_newreno and so on. They stay
loaded when the command ends. A network namespace chooses one for new sockets with

  sysctl -w net.ipv4.tcp_congestion_control=tabane_lia

and a program for a socket with the option TCP_CONGESTION. Subflows that join a connection get the control that the listening
socket had when it was opened, so start servers after that sysctl: docs/congestion-control.md.`,
		Example: `  tabane cc load lia
  tabane cc status
  tabane cc unload lia`,
	}
	Group(c)
	c.AddCommand(a.ccLoadCommand(), a.ccUnloadCommand(), a.ccStatusCommand())
	return c
}

func (a *App) ccLoadCommand() *cobra.Command {
	pace, lowat, set := true, false, ""
	c := &cobra.Command{
		Use:   "load [NAME]...",
		Short: "Load congestion controls, or replace other versions of them",
		Long: `Load loads the congestion controls with these names, or all: ` + strings.Join(congestion.Names(), ", ") + `.
One that is loaded in another version is replaced: new connections use the new version, running ones keep theirs.

The control ratio limits the rate of each subflow to that in --set: payload, in Mbit/s or with a unit, in the order in which
subflows join a connection. Loading it again changes the rates of running connections, too.

With --lowat an MPTCP subflow holds no more unsent data than fits into its window and what it sends in 20 ms, so that a slow
path delays less of what the others have delivered. It is paced below 400 Mbit/s. The control cubic is the kernel's own, by
default with --lowat and no other pacing.`,
		Example: `  tabane cc load
  tabane cc load cubic
  tabane cc load lia --pace=false
  tabane cc load ratio --set 80:20`,
		Args: ccNames,
		RunE: func(c *cobra.Command, args []string) error {
			names := named(args)
			rates, err := parseRates(set)
			switch {
			case err != nil:
				return err
			case set != "" && !slices.Equal(args, []string{congestion.Ratio}):
				return Invalid("--set", set, "no rates unless ratio alone is loaded")
			case set == "" && slices.Contains(args, congestion.Ratio):
				return Invalid("--set", set, "rates for ratio, like 80:20")
			case len(args) == 0: // which has no rates
				names = slices.DeleteFunc(names, func(name string) bool { return name == congestion.Ratio })
			}
			return a.loadControls(names, func(name string) congestion.Options {
				o := congestion.Defaults(name)
				if o.Rates = rates; c.Flags().Changed(paceFlag) {
					o.Pace = pace
				}
				if c.Flags().Changed(lowatFlag) {
					o.Lowat = lowat
				}
				return o
			})
		},
	}
	c.Flags().BoolVar(&pace, paceFlag, true, "pace packets instead of sending bursts (default for cubic: false)")
	c.Flags().BoolVar(&lowat, lowatFlag, false, "bound unsent data of MPTCP subflows (default for cubic: true)")
	c.Flags().StringVar(&set, "set", "", "`rates` of the subflows for ratio, separated by colons; 0: no limit")
	return c
}

// Flags of load whose defaults are those of each control.
const paceFlag, lowatFlag = "pace", "lowat"

// parseRates parses the rates of subflows, "80:20" or "80Mbit/s:500kbit/s".
func parseRates(text string) ([]unit.Bandwidth, error) {
	if text == "" {
		return nil, nil
	}
	var rates []unit.Bandwidth
	for field := range strings.SplitSeq(text, ":") {
		if n, err := strconv.ParseFloat(field, 64); err == nil && n >= 0 && n < 1e6 {
			field = strconv.FormatFloat(n*1e6, 'f', 0, 64) + "bit/s"
		}
		rate := unit.Bandwidth(0)
		if field != "0bit/s" {
			var err error
			if rate, err = unit.ParseBandwidth(field); err != nil || rate < 8 || rate > congestion.MaxRate {
				return nil, Invalid("--set", text, "rates like 80:20 or 1.5Gbit/s:200kbit/s, from 8bit/s to "+congestion.MaxRate.String())
			}
		}
		rates = append(rates, rate)
	}
	if len(rates) > congestion.MaxRates {
		return nil, Invalid("--set", text, fmt.Sprintf("at most %d rates", congestion.MaxRates))
	}
	return rates, nil
}

// loadControls loads the controls concurrently, since verifying programs keeps a processor busy,
// and returns the failure of the first that could not be loaded.
func (a *App) loadControls(names []string, options func(name string) congestion.Options) error {
	var h congestion.Host
	var wg sync.WaitGroup
	outcomes, errs := make([]congestion.Outcome, len(names)), make([]error, len(names))
	for i, name := range names {
		wg.Go(func() { outcomes[i], errs[i] = h.Load(name, options(name)) })
	}
	wg.Wait()
	var failure error
	for i, name := range names {
		kernelName := h.KernelName(name)
		if errs[i] != nil {
			failure = cmp.Or(failure, ccFailure("load", kernelName, errs[i]))
			continue
		}
		did := map[congestion.Outcome]string{
			congestion.Loaded: "loaded", congestion.Replaced: "replaced another version of", congestion.Unchanged: "already loaded:",
		}[outcomes[i]]
		if _, err := fmt.Fprintln(a.Out, did, kernelName); err != nil {
			return err
		}
	}
	return failure
}

func (a *App) ccUnloadCommand() *cobra.Command {
	force := false
	c := &cobra.Command{
		Use:   "unload [NAME]...",
		Short: "Unload congestion controls that nothing uses",
		Long: `Unload removes the congestion controls with these names, or all that are loaded. It refuses to remove one that a connection uses
or the sysctl of a network namespace names, and says which. With --force it first sets those sysctls to cubic; connections go
on with the removed control until they are closed.`,
		Example: `  tabane cc unload
  tabane cc unload lia --force`,
		Args: ccNames,
		RunE: func(_ *cobra.Command, args []string) error {
			var h congestion.Host
			for _, name := range named(args) {
				reset, err := h.Unload(name, force)
				if len(args) == 0 && errors.Is(err, fs.ErrNotExist) {
					continue
				}
				for _, n := range reset {
					fmt.Fprintf(a.Out, "reset %s in network namespace %s\n", congestion.Sysctl, n)
				}
				if err != nil {
					return ccFailure("unload", h.KernelName(name), err)
				}
				fmt.Fprintln(a.Out, "unloaded", h.KernelName(name))
			}
			return nil
		},
	}
	c.Flags().BoolVar(&force, "force", false, "unload also what is in use, and reset the sysctls that name it")
	return c
}

// ccNames checks the names of congestion controls.
func ccNames(_ *cobra.Command, args []string) error {
	for _, name := range args {
		if !slices.Contains(congestion.Names(), name) {
			return Invalid("NAME", name, "one of "+strings.Join(congestion.Names(), ", "))
		}
	}
	return nil
}

// named returns the names that are among the arguments, or all names.
func named(args []string) []string {
	return slices.DeleteFunc(congestion.Names(), func(name string) bool { return len(args) > 0 && !slices.Contains(args, name) })
}

func ccFailure(verb, name string, err error) error {
	do := ""
	var used *congestion.InUse
	switch {
	case errors.As(err, &used):
		do = "close the connections and reset the sysctls, or use --force"
	case errors.Is(err, congestion.ErrTaken):
		do = "unload it with the program that loaded it; tabane loads its own below /sys/fs/bpf"
	case errors.Is(err, errors.ErrUnsupported): // the error includes a remedy
	case errors.Is(err, fs.ErrPermission):
		do = "run it as root"
	case errors.Is(err, fs.ErrNotExist):
		do = "see tabane cc status"
	}
	return &Failure{What: verb + " congestion control", Name: name, Why: err, Do: do}
}

func (a *App) ccStatusCommand() *cobra.Command {
	asJSON := false
	c := &cobra.Command{
		Use:   "status",
		Short: "Show loaded congestion controls, what uses them, and their subflows",
		Long: `Status shows the congestion controls that are loaded and, over all network namespaces, what uses them: sysctls, and for each
connection and subflow the congestion window now (in segments) and averaged over the time with data in flight, the
round-trip time, losses (recoveries + timeouts), the share of that time in which the window was the limit, the increase of the window
in a round trip (NewReno: 1), alpha, and repairs: impossible windows and thresholds, left by a call of the program that the kernel had
skipped, that the control has replaced. It also shows listening sockets with another control than their namespace's.`,
		Args: Arguments(0, 0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			var h congestion.Host
			s, err := h.Status()
			if err != nil {
				return ccFailure("show", "", err)
			}
			if asJSON {
				e := json.NewEncoder(a.Out)
				e.SetIndent("", "  ")
				return e.Encode(s)
			}
			return a.printControls(s)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *App) printControls(s congestion.Status) error {
	if len(s.Controls) == 0 {
		_, err := fmt.Fprintln(a.Out, "no congestion control is loaded; tabane cc load")
		return err
	}
	w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CONTROL\tVERSION\tPACED\tLOWAT\tREPAIRS\tSOCKETS\tNAMESPACES")
	for _, c := range s.Controls {
		version := c.Version
		switch {
		case c.Elsewhere:
			version = "(its pins are in another mount namespace)"
		case version == "":
			version = "(unloaded)"
		case !c.Current:
			version += " (another; tabane cc load replaces it)"
		}
		fmt.Fprintf(w, "%s\t%s\t%v\t%v\t%d\t%d\t%s\n", c.Name, version, c.Paced, c.Lowat, c.Repairs, c.Sockets, strings.Join(c.Namespaces, ", "))
	}
	for _, c := range s.Controls {
		if len(c.Rates) > 0 {
			var rates []string
			for _, r := range c.Rates {
				rates = append(rates, r.String())
			}
			fmt.Fprintf(w, "\nrates of %s: %s\n", c.Name, strings.Join(rates, ":"))
		}
	}
	if len(s.Connections) > 0 {
		fmt.Fprintln(w, "\nNAMESPACE\tTOKEN\tLOCAL\tREMOTE\tCONTROL\tWINDOW\tMEAN\tSRTT\tLOSSES\tLIMITED\tPER RTT\tALPHA\tREPAIRS")
	}
	for _, c := range s.Connections {
		token := "TCP"
		if c.Token != 0 {
			token = fmt.Sprintf("%08x", c.Token)
		}
		for _, f := range c.Subflows {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%.1f\t%v\t%d+%d\t%.0f %%\t%.3f\t%.3f\t%d\n", c.Namespace, token, f.Local, f.Remote, f.Control, f.Window, f.MeanWindow,
				time.Duration(f.SRTT*float64(time.Second)).Round(10*time.Microsecond), f.Losses, f.Timeouts, 100*f.Limited, f.PerRoundTrip, f.Alpha, f.Repairs)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, l := range s.Listeners {
		_, err := fmt.Fprintf(a.Out, "\nlistener %s in %s has %s, not %s: subflows that join its connections have it too; restart the server\n", l.Address, l.Namespace, l.Control, l.Sysctl)
		if err != nil {
			return err
		}
	}
	return nil
}
