package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/cli/config"
	"github.com/tabane/tabane/internal/cli/doctor"
	"github.com/tabane/tabane/internal/cli/setup"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/epe/pathmanager"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/openplane"
	"github.com/tabane/tabane/internal/role"
)

func (a *App) doctorCommand() *cobra.Command {
	var asJSON, all bool
	var names []string
	for _, r := range role.All() {
		if r.Startable() {
			names = append(names, r.Name)
		}
	}
	c := &cobra.Command{
		Use:     "doctor [DAEMON]...",
		Short:   "Check what this host supports, and what to change",
		GroupID: "tools",
		Long: `Doctor checks every feature of the host that tabane uses, in a temporary network namespace, and says which daemons can run here.
Of running daemons it reports what is degraded and what on this host conflicts with them. It changes nothing. Without privileges it checks what it can.
It shows what the daemons need that are named, or that run or have a file in /etc/tabane; of a host without any, and with --all, everything.

Exit code 0: all required features are available; 1: some are missing.`,
		Example: `  tabane doctor
  tabane doctor gateway
  tabane doctor --json`,
		Args:      Arguments(0, len(names), "the names of daemons"),
		ValidArgs: names,
		RunE: func(c *cobra.Command, args []string) error {
			found, daemons := runningDaemons(c.Context())
			daemons = append(daemons, configuredDaemons(setup.DefaultDir)...)
			if len(args) > 0 {
				daemons = args
			}
			for _, name := range args {
				if !slices.Contains(names, name) {
					return &Failure{What: "examine host", Name: name, Why: errors.New("it is no daemon" + fault.Suggest(name, names)), Do: "name one of " + strings.Join(names, ", ")}
				}
			}
			// What is wrong with a running daemon precedes what another one would need.
			findings := slices.Concat(found, doctor.Examine(daemons))
			if asJSON {
				e := json.NewEncoder(a.Out)
				e.SetIndent("", "  ")
				if err := e.Encode(findings); err != nil {
					return err
				}
			} else if err := a.printFindings(findings, daemons, all); err != nil {
				return err
			}
			for _, f := range findings {
				if f.Needed && (f.State == doctor.Missing || f.State == doctor.Unknown) {
					return ErrUnmet
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print all findings as JSON")
	c.Flags().BoolVar(&all, "all", false, "show also what no daemon of this host needs")
	return c
}

// configuredDaemons returns the daemons that have their file in a directory.
func configuredDaemons(dir string) (names []string) {
	for _, r := range role.All() {
		file := filepath.Join(dir, r.Name+".yaml")
		if _, err := os.Stat(file); err != nil || !r.Startable() {
			continue
		}
		names = append(names, r.Name)
		// What the programs of a file with faults need is not known.
		if f, err := config.Load(file); err == nil && r.Name == role.Gateway && f.Gateway != nil && f.Gateway.Programs() {
			names = append(names, doctor.OpenGateway)
		}
	}
	return names
}

// runningDaemons returns what the daemons that answer at their default address say of themselves,
// and their names.
func runningDaemons(ctx context.Context) (findings []doctor.Finding, names []string) {
	all, err := statusSources(ctx, nil)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	for _, s := range all {
		body, err := ask(ctx, s.at, "/status")
		if !isSilent(err) {
			findings = append(findings, running(s.name, body, err)...)
			names = append(names, s.name)
			if s.name == role.Gateway && withPrograms(body) {
				names = append(names, doctor.OpenGateway)
			}
		}
	}
	return findings, names
}

// running returns what a daemon says of itself, and what follows from it for the host.
func running(name string, body []byte, err error) []doctor.Finding {
	f := doctor.Finding{Check: "running " + name, State: doctor.OK, Meaning: "is ready"}
	var s health.Status
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	var more []doctor.Finding
	if err == nil {
		more, err = consequences(name, body)
	}
	switch {
	case err != nil:
		f.State, f.Meaning = doctor.Unknown, err.Error()
	case !s.Ready:
		f.State, f.Meaning, f.Remedy = doctor.Limited, "is not ready: "+s.Reason, "tabane status "+name
	case s.Degraded:
		f.State, f.Meaning, f.Remedy = doctor.Limited, "is degraded: "+s.Reason, "tabane status "+name
	}
	if len(s.Host) > 0 {
		f.Remedy = remedies(s.Host)
		for _, p := range s.Host { // the reason has it, too
			f.Meaning = strings.ReplaceAll(f.Meaning, ": "+p.Remedy, "")
		}
	}
	return append([]doctor.Finding{f}, more...)
}

// remedies returns what mends problems of the host.
func remedies(problems []health.Problem) string {
	var all []string
	for _, p := range problems {
		all = append(all, p.Remedy)
	}
	return strings.Join(all, "; ")
}

// consequences returns what follows from the status of a daemon: for edge whether its egress peers
// fit into the slots of a connection, and whether packets to SIDs are sent; for gateway what is to be
// done for its packets.
func consequences(name string, body []byte) ([]doctor.Finding, error) {
	switch name {
	case role.Edge:
		list, err := slots(body)
		return append(list, toSIDs(body)...), err
	case role.Gateway:
		return ofGateway(body)
	}
	return nil, nil
}

// toSIDs examines what may drop packets to the SIDs of egress peers. slots reports an invalid body.
func toSIDs(body []byte) []doctor.Finding {
	var s struct {
		Address netip.Addr `json:"address"`
		Peers   []struct {
			SIDs []netip.Addr `json:"sids"`
		} `json:"peers"`
	}
	var sids []netip.Addr
	if json.Unmarshal(body, &s) == nil {
		for _, p := range s.Peers {
			sids = append(sids, p.SIDs...)
		}
	}
	if len(sids) == 0 || !s.Address.Is6() {
		return nil
	}
	return []doctor.Finding{doctor.EgressFilters(s.Address, sids)}
}

func slots(body []byte) ([]doctor.Finding, error) {
	var s struct {
		Peers []struct {
			Address netip.Addr `json:"address"`
		} `json:"peers"`
		Paths *struct {
			Waiting pathmanager.Waiting `json:"waiting"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(body, &s); err != nil || s.Paths == nil {
		return nil, err
	}
	count := map[bgp.IP]int{}
	for _, p := range s.Peers {
		count[bgp.IPOf(p.Address)]++
	}
	f := doctor.Finding{Check: "egress peers", State: doctor.OK}
	f.Meaning = fmt.Sprintf("%d IPv6 and %d IPv4 EPE addresses: a connection uses up to %d of its IP version", count[bgp.IPv6], count[bgp.IPv4], pathmanager.MaxSlots)
	if max(count[bgp.IPv6], count[bgp.IPv4]) > pathmanager.MaxSlots {
		f.State, f.Remedy = doctor.Limited, "choose by LOCAL_PREF on the border routers, or mark spare peers with backup: true"
		f.Meaning += fmt.Sprintf(", and %d connections have more than that", s.Paths.Waiting.Connections)
	}
	return []doctor.Finding{f}, nil
}

// withPrograms reports whether a gateway sends or relays packets by programs in the kernel, by its
// status.
func withPrograms(body []byte) bool {
	var s gateway.Status
	return json.Unmarshal(body, &s) == nil && slices.ContainsFunc(s.Peers, func(p gateway.PeerStatus) bool {
		return p.Mode != dataplane.Tunnel.String() || p.Role == dataplane.Leader.String()
	})
}

func ofGateway(body []byte) ([]doctor.Finding, error) {
	var s gateway.Status
	if err := json.Unmarshal(body, &s); err != nil {
		return nil, err
	}
	open := map[string]bool{}
	for _, p := range s.Peers {
		if p.Mode != dataplane.Tunnel.String() {
			open[p.Name] = true
		}
	}
	if len(open) == 0 {
		return []doctor.Finding{doctor.OfCondition(openplane.Marks(gateway.SocketMark))}, nil
	}
	var lines []string
	for _, l := range s.Lines {
		lines = append(lines, l.Interface)
	}
	conditions := []condition.Condition{
		openplane.LAN(s.LAN, s.Unlisted), openplane.Marks(gateway.SocketMark, openplane.Mark), openplane.Firewall(lines), openplane.TrafficControl(s.LAN, lines),
		openplane.KilledReversePath(lines),
	}
	var slowest gateway.PathStatus
	for _, p := range s.Paths {
		if open[p.Peer] && p.Rate > 0 && (slowest.Rate == 0 || p.Rate < slowest.Rate) {
			slowest = p
		}
	}
	if slowest.Rate > 0 {
		conditions = append(conditions, openplane.SuperPackets(s.LAN, slowest.Path, unit.Bandwidth(slowest.Rate)))
	}
	var findings []doctor.Finding
	for _, c := range conditions {
		findings = append(findings, doctor.OfCondition(c))
	}
	return findings, nil
}

// printFindings prints what is to be done first, within 80 columns but for remedies, which can be
// copied. What no daemon of this host uses is at the end, or left out.
func (a *App) printFindings(findings []doctor.Finding, daemons []string, all bool) error {
	used := slices.DeleteFunc(slices.Clone(findings), func(f doctor.Finding) bool { return f.Unused && !all })
	slices.SortStableFunc(used, func(a, b doctor.Finding) int { return cmp.Compare(urgency(a), urgency(b)) })
	checks := 0
	for _, f := range used {
		checks = max(checks, len(f.Check))
	}
	here := slices.DeleteFunc(slices.Clone(daemons), func(name string) bool { return name == doctor.OpenGateway })
	slices.Sort(here)
	needing := strings.Join(slices.Compact(here), ", ")
	var missing []string
	for i, f := range used {
		if f.Unused && (i == 0 || !used[i-1].Unused) {
			fmt.Fprintf(a.Out, "\nnot needed by %s:\n", needing)
		}
		start := fmt.Sprintf("%-*s  %-8s ", checks, f.Check, f.State)
		indent := strings.Repeat(" ", len(start))
		meaning := OneLine(f.Meaning)
		if f.Optional {
			meaning += " (optional)"
		}
		lines := Wrap(meaning, statusWidth-len(start))
		if f.Remedy != "" {
			lines = append(lines, "-> "+OneLine(f.Remedy))
		}
		if _, err := fmt.Fprintln(a.Out, strings.TrimRight(start+strings.Join(lines, "\n"+indent), " ")); err != nil {
			return err
		}
		if f.Needed && (f.State == doctor.Missing || f.State == doctor.Unknown) {
			missing = append(missing, f.Check)
		}
	}
	end := "this host supports delivery over every egress path and the lab"
	switch {
	case len(missing) > 0:
		end = "required, but missing or unknown: " + strings.Join(missing, ", ")
	case needing != "":
		end = "this host has what is required by: " + needing
	}
	if left := len(findings) - len(used); left > 0 {
		end += fmt.Sprintf("\n(%d more checks, of what other daemons and tools need: tabane doctor --all)", left)
	}
	_, err := fmt.Fprintf(a.Out, "\n%s\n", end)
	return err
}

// urgency orders findings: what tabane needs and has not, what else is missing or limited, what is
// well, and what is not used.
func urgency(f doctor.Finding) int {
	if f.Unused {
		return 3
	}
	switch f.State {
	case doctor.Missing, doctor.Unknown:
		if f.Needed {
			return 0
		}
		return 1
	case doctor.Limited:
		return 1
	case doctor.OK:
	}
	return 2
}

// Wrap breaks a text between its words into lines of at most so many bytes; a longer word has a
// line of its own.
func Wrap(text string, width int) []string {
	var lines []string
	for _, word := range strings.Fields(text) {
		if n := len(lines) - 1; n >= 0 && len(lines[n])+1+len(word) <= width {
			lines[n] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}
