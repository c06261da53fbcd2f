package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

const (
	tablePath    = "/routes/table"
	neighborPath = "/neighbor"
)

// speaking is a machine with a BGP speaker.
type speaking interface{ Speaker() *bgp.Speaker }

// unknownPeer is the error for a neighbor that a daemon does not have.
func unknownPeer(name string, s *bgp.Speaker) error {
	var names []string
	for _, n := range s.Neighbors() {
		names = append(names, n.Name)
	}
	hint := cmp.Or(fault.Suggest(name, names), "; tabane status peers lists them")
	return &unknownPeerError{fmt.Sprintf("no neighbor %q%s", name, hint)}
}

type unknownPeerError struct{ text string }

func (e *unknownPeerError) Error() string { return e.text }

// isDaemon reports whether an argument names a daemon or a status address.
func isDaemon(arg string) bool {
	_, err := netip.ParseAddrPort(arg)
	return err == nil || slices.Contains(statusNames(), arg)
}

// tableFlags are the flags of status routes that select a table.
type tableFlags struct{ view, peer, rt string }

// dumps reports whether the arguments and flags ask for a table, not for one destination.
func (f tableFlags) dumps(args []string) bool {
	return f != (tableFlags{}) || len(args) == 0 || len(args) == 1 && isDaemon(args[0])
}

// parseFilter parses what selects the routes of a table.
func parseFilter(q url.Values) (bgp.Filter, error) {
	f := bgp.Filter{View: bgp.View(q.Get("table")), Neighbor: q.Get("peer")}
	if f.View == "" {
		f.View = bgp.AcceptedRoutes
	}
	if !slices.Contains(bgp.Views, f.View) {
		return f, Invalid("--table", string(f.View), "received, accepted or advertised")
	}
	var err error
	if f.RD, err = parseRD(q.Get("rd")); err != nil {
		return f, err
	}
	if text := q.Get("rt"); text != "" {
		if f.RT, err = vpn.Parse(text); err != nil {
			return f, Invalid("--rt", text, `a route target like "65000:101"`)
		}
	}
	if text := q.Get("within"); text != "" {
		f.Within, err = parseDestination(text)
	}
	return f, err
}

// serveTable streams the routes of a table, a JSON object in each line. The connection breaks where
// the table is not complete.
func serveTable(w http.ResponseWriter, r *http.Request, s *bgp.Speaker) {
	f, err := parseFilter(r.URL.Query())
	if err == nil && f.Neighbor != "" {
		if _, e := s.Neighbor(f.Neighbor); e != nil {
			err = unknownPeer(f.Neighbor, s)
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	streamRoutes(w, func(yield func(bgp.RouteEntry) error) error { return s.Dump(f, yield) })
}

// streamRoutes answers with the routes of dump. The client learns at once that they come. How long
// the table takes to read is not limited, only how long the client takes to read what was found.
func streamRoutes(w http.ResponseWriter, dump func(yield func(bgp.RouteEntry) error) error) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines := json.NewEncoder(w)
	connection := http.NewResponseController(w)
	_ = connection.SetWriteDeadline(time.Time{}) // not supported is fine
	_ = connection.Flush()
	var limited time.Time
	limit := func() {
		if now := time.Now(); now.Sub(limited) > time.Second {
			_ = connection.SetWriteDeadline(now.Add(writeTimeout))
			limited = now
		}
	}
	err := dump(func(e bgp.RouteEntry) error {
		limit()
		return lines.Encode(e)
	})
	if err != nil {
		panic(http.ErrAbortHandler) // the client has closed the connection, or reads nothing
	}
	limit()
}

// dumpTable prints a table of each daemon.
func (a *App) dumpTable(ctx context.Context, args []string, rd string, f tableFlags, asJSON bool) error {
	const what = "read routes"
	q := url.Values{}
	for key, value := range map[string]string{"table": f.view, "peer": f.peer, "rt": f.rt, "rd": rd} {
		if value != "" {
			q.Set(key, value)
		}
	}
	if len(args) > 0 && !isDaemon(args[0]) {
		dst, err := parseDestination(args[0])
		if err != nil {
			return err
		}
		q.Set("within", dst.String())
		args = args[1:]
	}
	filter, err := parseFilter(q)
	if err != nil {
		return err
	}
	sources, err := statusSources(ctx, args)
	if err != nil {
		return err
	}
	found := false
	var unknown error
	for _, s := range sources {
		body, err := openStream(ctx, s.at, tablePath+"?"+q.Encode())
		var answer *answerError
		if len(args) == 0 && (errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &answer)) {
			if answer != nil && answer.code == http.StatusBadRequest {
				unknown = askFailure(s, err) // another daemon may have the neighbor
			}
			continue
		}
		if err != nil {
			return askFailure(s, err)
		}
		found = true
		if !asJSON {
			fmt.Fprintf(a.Out, "%s at %s: %s routes\n", strings.TrimSpace(s.name), s.at, filter.View)
		}
		err = copyTable(a.Out, body, asJSON)
		if err = errors.Join(err, body.Close()); err != nil {
			return askFailure(s, err)
		}
	}
	switch {
	case found:
		return nil
	case unknown != nil:
		return unknown
	}
	return noDaemon(what)
}

// openStream requests a path from a daemon's status address; the answer may take any time. The
// caller closes it.
func openStream(ctx context.Context, at netip.AddrPort, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+path, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dialHere, ResponseHeaderTimeout: statusTimeout}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswerError))
	return nil, errors.Join(&answerError{resp.StatusCode, resp.Status, OneLine(strings.TrimSpace(string(text)))}, resp.Body.Close())
}

// maxAnswerError bounds the text of an error, in bytes.
const maxAnswerError = 4096

// copyTable prints routes as they arrive.
func copyTable(w io.Writer, from io.Reader, asJSON bool) error {
	out := bufio.NewWriter(w)
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20) // an AS path has up to 30 kB
	n := 0
	for ; lines.Scan(); n++ {
		if asJSON {
			_, _ = out.Write(append(lines.Bytes(), '\n'))
			continue
		}
		var e bgp.RouteEntry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("its answer is not JSON: %w", err)
		}
		printRoute(out, e)
	}
	if n == 0 && !asJSON {
		fmt.Fprintln(out, "  no routes")
	}
	return errors.Join(lines.Err(), out.Flush())
}

// routeWidth is the width of a table of routes in columns.
const routeWidth = 80

// printRoute prints a route in the words of ip route, in as many lines of routeWidth as it needs.
func printRoute(w io.Writer, e bgp.RouteEntry) {
	words := []string{e.Prefix.String()}
	add := func(key, value string) {
		if value != "" {
			words = append(words, key+" "+value)
		}
	}
	add("rd", e.RD)
	if e.NextHop.IsValid() && !e.NextHop.IsUnspecified() {
		add("via", e.NextHop.String())
	}
	direction := "from"
	if e.State == "advertised" {
		direction = "to"
	}
	add(direction, e.Neighbor)
	if e.SID.IsValid() {
		add("sid", e.SID.String())
	}
	add("rt", strings.Join(e.RTs, ","))
	add("pref", fmt.Sprint(e.LocalPref))
	if e.MED != 0 {
		add("med", fmt.Sprint(e.MED))
	}
	add("path", e.ASPath)
	if e.Stale {
		words = append(words, "stale")
	}
	words = append(words, e.State)
	if e.Reason != "" {
		words[len(words)-1] += ": " + e.Reason
	}
	column := 0
	for i, word := range strings.Fields(strings.Join(words, " ")) {
		switch {
		case i == 0:
			word = "  " + word
		case column+1+len(word) > routeWidth:
			fmt.Fprint(w, "\n     ")
			column, word = 5, " "+word
		default:
			word = " " + word
		}
		fmt.Fprint(w, word)
		column += len(word)
	}
	fmt.Fprintln(w)
}

// peerDetail prints all details of a neighbor of each daemon that has it.
func (a *App) peerDetail(ctx context.Context, name string, args []string, asJSON bool) error {
	const what = "read neighbor"
	sources, err := statusSources(ctx, args)
	if err != nil {
		return err
	}
	found, err := a.peerDetailOf(ctx, name, sources, len(args) > 0, asJSON)
	if !found && err == nil {
		return noDaemon(what)
	}
	return err
}

// peerDetailOf is peerDetail of these daemons, of which some may be absent unless they are named.
func (a *App) peerDetailOf(ctx context.Context, name string, sources []source, named, asJSON bool) (found bool, err error) {
	var last error
	for _, s := range sources {
		body, err := ask(ctx, s.at, neighborPath+"?"+url.Values{"name": {name}}.Encode())
		if isAbsent(err) && !named {
			continue
		}
		if err != nil {
			last = askFailure(s, err)
			continue
		}
		found = true
		if err := printStatus(a.Out, s, body, asJSON); err != nil {
			return true, &Failure{What: "print neighbor of " + s.kind(), Name: s.at.String(), Why: err}
		}
	}
	if found {
		return true, nil
	}
	return false, last
}

func (a *App) clearCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "clear", Short: "Reset BGP sessions of the daemons on this host", GroupID: "tools",
		Args: Arguments(0, 0, "peer NAME"), RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	var hard bool
	peer := &cobra.Command{
		Use:   "peer NAME [DAEMON|ADDRESS]",
		Short: "Refresh the routes of a BGP session, or reset the session",
		Long: `Peer asks the neighbor with a name or an address for all of its routes again (route refresh, RFC 2918) and advertises all of
ours again. The session stays up. With --hard it ends the session with a NOTIFICATION, Cease/Administrative Reset, and connects
again at once. Routes are withdrawn meanwhile; a server retains those of its reflectors.

It concerns all daemons on this host that have the neighbor, or the one that is named, and needs their user or root.`,
		Example: `  tabane clear peer transit-a
  tabane clear peer 2001:db8:1::fe edge --hard`,
		Args:              Arguments(1, 2, "the name or address of a neighbor, and at most one daemon or address"),
		ValidArgsFunction: Complete(neighborNames, answeringDaemons),
		RunE:              func(c *cobra.Command, args []string) error { return a.clearPeer(c.Context(), args[0], args[1:], hard) },
	}
	peer.Flags().BoolVar(&hard, "hard", false, "end the session, and open it again")
	c.AddCommand(peer)
	return c
}

func (a *App) clearPeer(ctx context.Context, name string, args []string, hard bool) error {
	const what = "clear peer"
	sources, err := statusSources(ctx, args)
	if err != nil {
		return err
	}
	q := url.Values{"peer": {name}}
	if hard {
		q.Set("hard", "yes")
	}
	found, err := a.clearPeerOf(ctx, sources, len(args) > 0, q)
	if !found && err == nil {
		return noDaemon(what)
	}
	return err
}

// clearPeerOf sends the command to these daemons, of which some may be without the neighbor unless
// they are named. The error is the first failure.
func (a *App) clearPeerOf(ctx context.Context, sources []source, named bool, q url.Values) (found bool, err error) {
	var failed, unknown error
	for _, s := range sources {
		on := strings.TrimSpace(s.name + " " + s.at.String())
		lines, err := command(ctx, s.at, http.MethodPost, clearPath, q)
		var absent *absentError
		switch {
		case err == nil:
			found = true
			fmt.Fprintf(a.Out, "%s: %s\n", on, strings.Join(lines, " "))
		case !named && (isSilent(err) || errors.Is(err, errNoControl)):
		case !named && errors.As(err, &absent):
			if !absent.command {
				// Another daemon may have the neighbor.
				unknown = commandFailure(fmt.Sprintf("clear peer %q of", q.Get("peer")), s, err)
			}
		default:
			failed = cmp.Or(failed, commandFailure(fmt.Sprintf("clear peer %q of", q.Get("peer")), s, err))
		}
	}
	if failed == nil && !found {
		failed = unknown
	}
	return found, failed
}
