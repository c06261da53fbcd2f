package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/analysis/measure"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/role"
)

const (
	measureName  = "measure"
	measureShort = "Measure which way of delivery is best for a client"
)

type measureServeFlags struct {
	listen     []string
	key        string
	edge       string
	peers      []string
	congestion string
	bytes      string
	total      string
	time       time.Duration
	turns      int
	edgeModes  bool
}

// MeasureServeCommand is the command "measure serve", which both programs have.
func (a *App) MeasureServeCommand() *cobra.Command {
	var f measureServeFlags
	c := &cobra.Command{
		Use:   "serve [--listen ADDRESS]...",
		Short: "Serve measurements to clients",
		Long: `Serve answers the clients of "tabane measure run", and what "tabane serve" answers, on one TCP port. Run it on a content server beside
edge: its egress peers are then modes, as long as they have routes. Clients measure one after the other, in a queue. It writes no files.

Without a key, everybody who reaches the port can measure, within the limits of a trial. A key is a line of at least 16 characters that
clients have as well. It keeps strangers out; it does not encrypt.`,
		Example: `  tabane measure serve
  tabane measure serve --listen '[::]:9000' --key /etc/tabane/measure.key --total-bytes 100GB
  tabane measure serve --peer transit-a=2001:db8:1::a --peer transit-b=2001:db8:1::b`,
		Args: Arguments(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return a.measureServe(c, f) },
	}
	flags := c.Flags()
	flags.StringArrayVar(&f.listen, "listen", []string{"[::]:8080"}, "`address` and port to serve on, repeatable; port 0 chooses a free one")
	flags.StringVar(&f.key, "key", "", "`file` with the shared key in its first line (default: no key)")
	flags.StringVar(&f.edge, "edge", "", "status `address` of the edge whose egress peers are modes (default that of this host)")
	flags.BoolVar(&f.edgeModes, "edge-modes", false, "let clients with the key have the edge deliver to their address by its modes, for a trial; needs --key")
	flags.StringArrayVar(&f.peers, "peer", nil, "egress peer, as `NAME=ADDRESS` with the address on this host that leads to it, repeatable (default those of edge)")
	flags.StringVar(&f.congestion, "congestion", "", "congestion control of all subflows, by its `name` in the kernel (default the sysctl's)")
	flags.StringVar(&f.bytes, "trial-bytes", measure.DefaultBytes.String(), "largest `size` of a trial")
	flags.DurationVar(&f.time, "trial-time", measure.DefaultTime, "longest time of a trial")
	flags.StringVar(&f.total, "total-bytes", "", "`size` of all trials together, after which no more are served (default no limit)")
	flags.IntVar(&f.turns, "clients", 1, "`n` clients that measure at the same time, and disturb each other where they share a path")
	return c
}

func (a *App) measureServe(c *cobra.Command, f measureServeFlags) error {
	log, err := a.Logger(a.Err, slog.LevelInfo)
	if err != nil {
		return err
	}
	listen, err := listenAddresses(c.Context(), f.listen, "")
	if err != nil {
		return err
	}
	o := measure.ServerOptions{Turns: f.turns, Congestion: f.congestion}
	switch {
	case f.time < time.Second || f.time > time.Hour:
		return Invalid("--trial-time", f.time.String(), "1s to 1h")
	case f.turns < 1 || f.turns > 64:
		return Invalid("--clients", fmt.Sprint(f.turns), "1 to 64")
	}
	o.Limits.Time = f.time
	if o.Limits.Bytes, err = unit.ParseSize(f.bytes); err != nil || o.Limits.Bytes <= 0 {
		return Invalid("--trial-bytes", f.bytes, "a size like 1GB")
	}
	if f.total != "" {
		if o.Total, err = unit.ParseSize(f.total); err != nil || o.Total <= 0 {
			return Invalid("--total-bytes", f.total, "a size like 100GB")
		}
	}
	if f.key != "" {
		if o.Key, err = ReadKey(f.key); err != nil {
			return err
		}
	}
	at, err := edgeAddress(f.edge)
	if err != nil {
		return err
	}
	if o.Peers, err = measuredPeers(log, f.peers, at); err != nil {
		return err
	}
	var byEdge *edgeDelivery
	if f.edgeModes {
		if o.Key == nil {
			return Usage(c, errors.New("--edge-modes changes how clients are delivered, so it needs --key: only those that have the key may"))
		}
		if f.turns > 1 {
			return Usage(c, errors.New("--edge-modes is of an address, which clients may share, so it needs --clients 1"))
		}
		byEdge = &edgeDelivery{at: at, log: log, users: map[netip.Addr]*edgeUse{}}
	}
	if o.Key == nil {
		log.Warn("there is no key: everybody who reaches this port can measure; see --key")
	}
	return a.serve(c.Context(), log, listen, f.congestion, o, byEdge)
}

// ReadKey reads a shared key from the first line of a file.
func ReadKey(path string) ([]byte, error) {
	const what = "read key"
	file, err := os.Open(path)
	if err != nil {
		return nil, FileFailure(what, path, err)
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, 4<<10))
	if err != nil {
		return nil, FileFailure(what, path, err)
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	key := bytes.TrimSpace(line)
	if !utf8.Valid(key) || bytes.ContainsFunc(key, unicode.IsControl) {
		return nil, &Failure{What: what, Name: path, Why: errors.New("its first line is not text"), Do: "make one: head -c 24 /dev/urandom | base64"}
	}
	if len(key) < measure.MinKey {
		return nil, &Failure{What: what, Name: path, Why: fmt.Errorf("its first line has %d characters, and a key has %d or more", len(key), measure.MinKey), Do: "make one: head -c 24 /dev/urandom | base64"}
	}
	return key, nil
}

// edgeAddress returns the status address of the edge: that of the flag, or the default.
func edgeAddress(flag string) (netip.AddrPort, error) {
	if flag != "" {
		at, err := netip.ParseAddrPort(flag)
		if err != nil {
			return at, Invalid("--edge", flag, `an address and port like "[::1]:9117"`)
		}
		return at, nil
	}
	descriptor, ok := role.Named(role.Edge)
	if !ok {
		panic("BUG: there is no daemon edge")
	}
	return descriptor.DefaultStatus(), nil
}

// measuredPeers returns the egress peers that are modes: those of the flags, or of the edge.
func measuredPeers(log *slog.Logger, peers []string, at netip.AddrPort) (func(context.Context) []measure.Peer, error) {
	if len(peers) == 0 {
		return edgePeers(log, at), nil
	}
	var list []measure.Peer
	for _, text := range peers {
		name, address, _ := strings.Cut(text, "=")
		at, err := netip.ParseAddr(address)
		m, modeErr := measure.ParseMode(measure.Single + ":" + name)
		if err != nil || modeErr != nil {
			return nil, Invalid("--peer", text, "a name and an address like transit-b=2001:db8:1::b")
		}
		list = append(list, measure.Peer{Name: m.Peer, Address: at})
	}
	return func(context.Context) []measure.Peer { return list }, nil
}

// edgePeers returns a function that asks the edge for its egress peers with routes. Without an
// answer there are none.
func edgePeers(log *slog.Logger, at netip.AddrPort) func(context.Context) []measure.Peer {
	return func(ctx context.Context) []measure.Peer {
		body, err := ask(ctx, at, "/status")
		var peers []measure.Peer
		if err == nil {
			peers, err = parseEdgePeers(body)
		}
		if err != nil {
			log.Debug("the edge does not name its egress peers", "address", at, "err", err)
		}
		return peers
	}
}

// parseEdgePeers decodes an edge's status.
func parseEdgePeers(body []byte) (peers []measure.Peer, err error) {
	var status struct {
		Role  string `json:"role"`
		Peers []struct {
			Name    string     `json:"name"`
			Address netip.Addr `json:"address"`
			Routes  int        `json:"routes"`
		} `json:"peers"`
	}
	if err := json.Unmarshal(body, &status); err != nil {
		return nil, err
	}
	if status.Role != role.Edge {
		return nil, errors.New("it is not an edge")
	}
	for _, p := range status.Peers {
		if _, err := measure.ParseMode(measure.Single + ":" + p.Name); err == nil && p.Routes > 0 && p.Address.IsValid() {
			peers = append(peers, measure.Peer{Name: p.Name, Address: p.Address})
		}
	}
	return peers, nil
}

// MeasureCommand is the command "measure" of the program tabane-lab, without what only that has.
func (a *App) MeasureCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     measureName,
		Short:   measureShort,
		GroupID: "tools",
		Long: `Measure compares, for one client, the ways in which a content server can deliver to it: TCP over BGP's best path, each egress path
alone, several TCP connections, MPTCP over all paths, and the modes of edge. It repeats them in random order, says which are better and
how sure that is, and draws the report: docs/measure.md.`,
		Example: `  tabane measure serve
  tabane measure run http://server:8080/ --modes tcp,multipath --out isp-e
  tabane measure run --resume isp-e
  tabane measure report isp-a isp-b isp-e --out report`,
	}
	Group(c)
	c.AddCommand(a.MeasureServeCommand())
	return c
}
