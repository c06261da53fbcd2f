package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/role"
)

const (
	routesPath      = "/routes"
	connectionsPath = "/connections"
	networksPath    = "/networks"
	// defaultConnections and maxConnections bound a list of connections or networks.
	defaultConnections, maxConnections = 100, 10000
)

// routed is a machine that can show its routes to a destination.
type routed interface {
	Routes(ctx context.Context, dst netip.Prefix, rd vpn.ID) (any, error)
}

// connected is a machine that can list connections.
type connected interface {
	Connections(ctx context.Context, limit int) (any, error)
}

// delivering is a machine that can list client networks.
type delivering interface {
	Networks(ctx context.Context, within netip.Prefix, limit int) (any, error)
}

// serveDetails serves data that is too large for /status or needs parameters. Each response is
// bounded.
func serveDetails(mux *http.ServeMux, m role.Machine) {
	detail := func(path string, answer func(ctx context.Context, q url.Values) (any, error)) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), statusTimeout)
			defer cancel()
			value, err := answer(ctx, r.URL.Query())
			var invalid *UsageError
			switch {
			case errors.As(err, &invalid):
				http.Error(w, err.Error(), http.StatusBadRequest)
			case err != nil:
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
			default:
				control.WriteJSON(w, value)
			}
		})
	}
	if m, ok := m.(routed); ok {
		detail(routesPath, func(ctx context.Context, q url.Values) (any, error) {
			dst, err := parseDestination(q.Get("destination"))
			if err != nil {
				return nil, err
			}
			rd, err := parseRD(q.Get("rd"))
			if err != nil {
				return nil, err
			}
			return m.Routes(ctx, dst, rd)
		})
	}
	if m, ok := m.(speaking); ok {
		mux.HandleFunc("GET "+tablePath, func(w http.ResponseWriter, r *http.Request) { serveTable(w, r, m.Speaker()) })
		detail(neighborPath, func(_ context.Context, q url.Values) (any, error) {
			d, err := m.Speaker().Neighbor(q.Get("name"))
			if errors.Is(err, bgp.ErrUnknownNeighbor) {
				return nil, unknownPeer(q.Get("name"), m.Speaker())
			}
			return d, err
		})
	}
	if m, ok := m.(connected); ok {
		detail(connectionsPath, func(ctx context.Context, q url.Values) (any, error) {
			limit, err := parseLimit(q.Get("limit"))
			if err != nil {
				return nil, err
			}
			return m.Connections(ctx, limit)
		})
	}
	if m, ok := m.(delivering); ok {
		detail(networksPath, func(ctx context.Context, q url.Values) (any, error) {
			limit, err := parseLimit(q.Get("limit"))
			if err != nil {
				return nil, err
			}
			var within netip.Prefix
			if text := q.Get("within"); text != "" {
				if within, err = parseDestination(text); err != nil {
					return nil, err
				}
			}
			return m.Networks(ctx, within, limit)
		})
	}
}

// parseDestination parses a prefix, or an address as a prefix of full length.
func parseDestination(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if a, e := netip.ParseAddr(text); e == nil && a.Zone() == "" {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, Invalid("PREFIX|ADDRESS", text, "a prefix or address like 2001:db8::/32 or 192.0.2.1")
	}
	if p != p.Masked() {
		return netip.Prefix{}, Invalid("PREFIX|ADDRESS", text, fmt.Sprintf("a prefix without host bits, as %s", p.Masked()))
	}
	return p, nil
}

// parseRD parses a route distinguisher; empty text returns an invalid one without an error.
func parseRD(text string) (vpn.ID, error) {
	if text == "" {
		return vpn.ID{}, nil
	}
	rd, err := vpn.Parse(text)
	if err != nil {
		return vpn.ID{}, Invalid("--rd", text, `a route distinguisher like "65000:1" or "192.0.2.1:1"`)
	}
	return rd, nil
}

func parseLimit(text string) (int, error) {
	if text == "" {
		return defaultConnections, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxConnections {
		return 0, Invalid("--limit", text, fmt.Sprintf("a number from 1 to %d", maxConnections))
	}
	return n, nil
}

// detailCommands returns the subcommands of status.
func (a *App) detailCommands() []*cobra.Command {
	return []*cobra.Command{
		a.statusRoutes(), a.statusConnections(), a.statusNetworks(), a.statusPeers(), a.statusSIDs(),
	}
}

func addJSON(c *cobra.Command, asJSON *bool) {
	c.Flags().BoolVar(asJSON, "json", false, "print JSON, one object for each daemon")
}

func (a *App) statusRoutes() *cobra.Command {
	var asJSON bool
	var rd string
	var table tableFlags
	c := &cobra.Command{
		Use:   "routes [PREFIX|ADDRESS] [DAEMON|ADDRESS]",
		Short: "Show the paths to a destination and why one is used, or the tables of routes",
		Long: `With a destination, routes shows the longest match for a destination: on a server and on a border router the path through each egress peer, and the
BGP paths with the step of route selection that decided (RFC 4271 section 9.1.2.2). A reflector shows VPN routes of the route
distinguisher that --rd names.

Without one, or with --table, --peer or --rt, it dumps a table: the routes that neighbors advertise, with the reason of those
that are refused or unused (received); those that policy accepts, as it changes them (accepted); or those that neighbors
are sent (advertised). A prefix then selects the routes to it and to longer prefixes inside. With --json, each route is a line.`,
		Example: `  tabane status routes 2001:db8::1
  tabane status routes 2001:db8::/32 asbr --json
  tabane status routes 2001:db8::1 reflector --rd 192.0.2.1:1
  tabane status routes asbr --table received --peer transit-a
  tabane status routes reflector --rt 65000:101 --json`,
		Args:              Arguments(0, 2, "at most a prefix or address, and a daemon or address"),
		ValidArgsFunction: Complete(answeringDaemons, answeringDaemons),
		RunE: func(c *cobra.Command, args []string) error {
			if table.dumps(args) {
				return a.dumpTable(c.Context(), args, rd, table, asJSON)
			}
			dst, err := parseDestination(args[0])
			if err != nil {
				return err
			}
			if _, err := parseRD(rd); err != nil {
				return err
			}
			q := url.Values{"destination": {dst.String()}}
			if rd != "" {
				q.Set("rd", rd)
			}
			return a.detail(c.Context(), args[1:], routesPath+"?"+q.Encode(), nil, asJSON)
		},
	}
	addJSON(c, &asJSON)
	c.Flags().StringVar(&table.view, "table", "", "dump a table: received, accepted or advertised `routes` (accepted if --peer or --rt is given)")
	c.Flags().StringVar(&table.peer, "peer", "", "only routes from, or to, the neighbor with this `name` or address")
	c.Flags().StringVar(&table.rt, "rt", "", "only VPN routes with this route `target`")
	c.Flags().StringVar(&rd, "rd", "", "also look up the VPN route with this route `distinguisher`")
	CompleteFlag(c, "peer", neighborNames)
	CompleteFlag(c, "table", func(context.Context) []string { return []string{"received", "accepted", "advertised"} })
	return c
}

func (a *App) statusConnections() *cobra.Command {
	var asJSON bool
	var limit string
	c := &cobra.Command{
		Use:   "connections [DAEMON|ADDRESS]",
		Short: "Show the subflows of clients' connections, or the NAT sessions of a gateway",
		Long: `Connections shows each subflow of the connections of a server: its egress peer, whether it is a backup, and with "use: overflow"
or a policy, as use, why it carries data or rests (docs/policies.md explains the values). Of a gateway it shows the NAT sessions.`,
		Example: `  tabane status connections
  tabane status connections edge --limit 1000 --json`,
		Args:              Arguments(0, 1, "at most one daemon or address"),
		ValidArgsFunction: Complete(answeringDaemons),
		RunE: func(c *cobra.Command, args []string) error {
			n, err := parseLimit(limit)
			if err != nil {
				return err
			}
			return a.detail(c.Context(), args, connectionsPath+"?limit="+strconv.Itoa(n), nil, asJSON)
		},
	}
	addJSON(c, &asJSON)
	c.Flags().StringVar(&limit, "limit", strconv.Itoa(defaultConnections), "show at most `n` connections")
	return c
}

func (a *App) statusNetworks() *cobra.Command {
	var asJSON bool
	var limit string
	c := &cobra.Command{
		Use:   "networks [PREFIX|ADDRESS] [DAEMON|ADDRESS]",
		Short: "Show how packets reach client networks, and through which egress peers",
		Long: `Networks shows the client networks whose mode of delivery is not the best path: the mode and the rule that it is from, the
egress peers that packets leave through, and those of the mode that have no route to the network (docs/delivery.md). With a
prefix or an address, only the network that it belongs to and those inside.`,
		Example: `  tabane status networks
  tabane status networks 2001:db8:100::1
  tabane status networks 198.51.100.0/24 edge --json`,
		Args:              Arguments(0, 2, "at most a prefix or address, and a daemon or address"),
		ValidArgsFunction: Complete(Either(clientNetworks, answeringDaemons), answeringDaemons),
		RunE: func(c *cobra.Command, args []string) error {
			n, err := parseLimit(limit)
			if err != nil {
				return err
			}
			q := url.Values{"limit": {strconv.Itoa(n)}}
			if len(args) > 0 && (len(args) == 2 || !isDaemon(args[0])) {
				within, err := parseDestination(args[0])
				if err != nil {
					return err
				}
				q.Set("within", within.String())
				args = args[1:]
			}
			return a.detail(c.Context(), args, networksPath+"?"+q.Encode(), nil, asJSON)
		},
	}
	addJSON(c, &asJSON)
	c.Flags().StringVar(&limit, "limit", strconv.Itoa(defaultConnections), "show at most `n` networks")
	return c
}

func (a *App) statusPeers() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "peers [NAME] [DAEMON|ADDRESS]", Short: "Show the egress peers and the BGP sessions, or all details of one session",
		Long: `Peers shows the egress peers and the BGP sessions of each daemon. With the name or the address of a neighbor it shows all that is
known of that session: state, capabilities, timers, families with their routes by reason, last errors, flaps and retention.`,
		Example: `  tabane status peers
  tabane status peers asbr
  tabane status peers transit-a
  tabane status peers 2001:db8:1::fe edge --json`,
		Args:              Arguments(0, 2, "at most the name or address of a neighbor, and a daemon or address"),
		ValidArgsFunction: Complete(Either(neighborNames, answeringDaemons), answeringDaemons),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 2 || len(args) == 1 && !isDaemon(args[0]) {
				return a.peerDetail(c.Context(), args[0], args[1:], asJSON)
			}
			return a.detail(c.Context(), args, "/status", onlyKeys("peers", "sessions"), asJSON)
		},
	}
	addJSON(c, &asJSON)
	return c
}

func (a *App) statusSIDs() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "sids [DAEMON|ADDRESS]", Short: "Show the SID of each egress peer",
		Args:              Arguments(0, 1, "at most one daemon or address"),
		ValidArgsFunction: Complete(answeringDaemons),
		RunE: func(c *cobra.Command, args []string) error {
			return a.detail(c.Context(), args, "/status", onlySIDs, asJSON)
		},
	}
	addJSON(c, &asJSON)
	return c
}

// isAbsent reports whether a daemon does not run, or does not have the path.
func isAbsent(err error) bool {
	var answer *answerError
	return isSilent(err) || errors.As(err, &answer) && answer.code == http.StatusNotFound
}

// detail prints the selected part of a response of each daemon that supports the path.
func (a *App) detail(ctx context.Context, args []string, path string, selected func(object) (object, error), asJSON bool) error {
	const what = "read status"
	sources, err := statusSources(ctx, args)
	if err != nil {
		return err
	}
	found := false
	var failed error // the first one
	for _, s := range sources {
		body, err := ask(ctx, s.at, path)
		if isAbsent(err) && len(args) == 0 {
			continue
		}
		if err == nil && selected != nil {
			body, err = selectKeys(body, selected)
		}
		if err != nil {
			failed = cmp.Or(failed, askFailure(s, err))
			continue
		}
		if body == nil {
			continue
		}
		if found && !asJSON {
			fmt.Fprintln(a.Out)
		}
		found = true
		if err := printStatus(a.Out, s, body, asJSON); err != nil {
			return &Failure{What: "print answer of " + s.kind(), Name: s.at.String(), Why: err}
		}
	}
	if failed != nil {
		return failed
	}
	if !found {
		return &Failure{What: what, Why: errors.New("no daemon of this host answers this at its default address"), Do: "start one, or name its address"}
	}
	return nil
}

// selectKeys applies a selection to a status and returns nil if nothing is selected.
func selectKeys(body []byte, selected func(object) (object, error)) ([]byte, error) {
	o, err := readObject(body)
	if err == nil {
		o, err = selected(o)
	}
	if err != nil || len(o.keys) == 0 {
		return nil, err
	}
	return o.encode()
}

// onlyKeys returns a selection of these keys.
func onlyKeys(keys ...string) func(object) (object, error) {
	return func(o object) (object, error) {
		out := object{values: o.values}
		for _, key := range keys {
			if _, ok := o.values[key]; ok {
				out.keys = append(out.keys, key)
			}
		}
		return out, nil
	}
}

// onlySIDs selects the SIDs of the egress peers: one for each peer on an ASBR, on a server those of
// all ASBRs that reach the peer.
func onlySIDs(o object) (object, error) {
	if o.values["peers"] == nil {
		return object{}, nil
	}
	var peers []struct {
		Name   string          `json:"name"`
		SID    json.RawMessage `json:"sid,omitempty"`
		SIDs   json.RawMessage `json:"sids,omitempty"`
		RT     string          `json:"rt"`
		RD     string          `json:"rd,omitempty"`
		Table  uint32          `json:"table"`
		Routes int             `json:"routes"`
	}
	if err := json.Unmarshal(o.values["peers"], &peers); err != nil {
		return object{}, err
	}
	b, err := json.Marshal(peers)
	return object{keys: []string{"sids"}, values: map[string]json.RawMessage{"sids": b}}, err
}
