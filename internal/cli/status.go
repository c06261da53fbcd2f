package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/role"
)

const (
	statusTimeout = 5 * time.Second
	// maxStatus bounds a response of a daemon in bytes.
	maxStatus = 64 << 20
)

// source is a daemon whose status is requested.
type source struct {
	name string
	at   netip.AddrPort
}

// kind returns which daemon it is, as far as the command line says so.
func (s source) kind() string { return cmp.Or(s.name, "daemon") }

func (a *App) statusCommand() *cobra.Command {
	var asJSON, acknowledge bool
	names := statusNames()
	c := &cobra.Command{
		Use:     "status [DAEMON|ADDRESS]",
		Short:   "Show the state of the daemons on this host",
		GroupID: "tools",
		Long: `Status prints the state of the daemons on this host: of all that answer at their default address, or of one, by its name
(` + strings.Join(names, ", ") + `) or by its status address ("[::1]:9117"). The exit code is 1 if one of them is degraded or not ready.

A panic that was contained is a reason to be degraded for an hour. With --acknowledge, those so far are no reason any more.`,
		Example: `  tabane status
  tabane status edge
  tabane status --json '[::1]:9117'
  tabane lab exec server -- tabane status edge
  tabane status routes 2001:db8::1 edge`,
		Args:              Arguments(0, 1, "at most one daemon or address"),
		ValidArgsFunction: Complete(answeringDaemons),
		RunE: func(c *cobra.Command, args []string) error {
			return a.status(c.Context(), args, asJSON, acknowledge)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the daemons' status as JSON, one object for each")
	c.Flags().BoolVar(&acknowledge, "acknowledge", false, "report the panics so far no more")
	c.AddCommand(a.detailCommands()...)
	return c
}

func (a *App) status(ctx context.Context, args []string, asJSON, acknowledge bool) error {
	sources, err := statusSources(ctx, args, "routes", "peers", "sids", "connections")
	if err != nil {
		return err
	}
	found, impaired := false, false
	var failed error // the first one
	for _, s := range sources {
		if acknowledge {
			_, err := command(ctx, s.at, http.MethodDelete, panicsPath, nil)
			absent := isSilent(err) || errors.Is(err, errNoControl)
			if err != nil && (!absent || len(args) > 0) {
				return commandFailure("acknowledge panics of", s, err)
			}
		}
		body, err := ask(ctx, s.at, "/status")
		if isSilent(err) && len(args) == 0 {
			continue
		}
		if err != nil {
			failed = cmp.Or(failed, askFailure(s, err))
			continue
		}
		if found && !asJSON {
			fmt.Fprintln(a.Out)
		}
		found = true
		shown := body
		if b, err := selectKeys(body, withoutMessages); err == nil && !asJSON {
			shown = b
		}
		if err := printStatus(a.Out, s, shown, asJSON); err != nil {
			return &Failure{What: "print status of " + s.kind(), Name: s.at.String(), Why: err}
		}
		var h health.Status
		if err := json.Unmarshal(body, &h); err != nil {
			return &Failure{What: "read status of " + s.kind(), Name: s.at.String(), Why: err}
		}
		impaired = impaired || !h.Ready || h.Degraded
	}
	if failed != nil {
		return failed
	}
	if !found {
		return noDaemon("read status")
	}
	if impaired {
		return ErrUnmet
	}
	return nil
}

// askFailure returns the failure of a request to a daemon.
func askFailure(s source, err error) error {
	do := ""
	if errors.Is(err, syscall.ECONNREFUSED) {
		do = "start it, or name its address"
	}
	return &Failure{What: "query " + s.kind(), Name: s.at.String(), Why: err, Do: do}
}

// noDaemon returns the failure of a command for all daemons when none is running.
func noDaemon(what string) error {
	return &Failure{What: what, Why: errors.New("no daemon of this host answers at its default address"), Do: "start one, or name its address"}
}

// statusNames returns the names of the daemons that serve a status.
func statusNames() []string {
	var names []string
	for _, r := range role.All() {
		if r.DefaultStatus().IsValid() {
			names = append(names, r.Name)
		}
	}
	return names
}

// statusSources returns the daemon of the argument, or all daemons. also has further words to
// suggest for an unknown name.
func statusSources(ctx context.Context, args []string, also ...string) ([]source, error) {
	var all []source
	for _, r := range role.All() {
		if !r.DefaultStatus().IsValid() {
			continue
		}
		if len(args) == 1 && args[0] == r.Name {
			return []source{{r.Name, answersAt(ctx, r.DefaultStatus())}}, nil
		}
		if len(args) == 0 {
			all = append(all, source{r.Name, answersAt(ctx, r.DefaultStatus())})
		}
	}
	if len(args) == 0 {
		return all, nil
	}
	at, err := netip.ParseAddrPort(args[0])
	if err != nil {
		return nil, &Failure{What: "find daemon", Name: args[0], Why: errors.New("it is neither a daemon nor an address" + fault.Suggest(args[0], append(statusNames(), also...))), Do: `name a daemon, or an address like "[::1]:9117"`}
	}
	return []source{{"", at}}, nil
}

// errForeign is the answer of a program that is none of tabane, such as an exporter of metrics that
// has the default address of a daemon.
var errForeign = errors.New("another program answers there, not a daemon of tabane")

// isSilent reports whether no daemon answers at an address.
func isSilent(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, errForeign)
}

// ask requests a path, with its query, from a daemon's status address. The error of a status other
// than 200 is an *answerError.
func ask(ctx context.Context, at netip.AddrPort, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+path, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dialHere}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, cause(errors.Unwrap(err))
	}
	defer resp.Body.Close()
	if kind := resp.Header.Get("Content-Type"); path == "/status" && (resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusOK && kind != "application/json") {
		return nil, errForeign
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	if err == nil && resp.StatusCode != http.StatusOK {
		return nil, &answerError{resp.StatusCode, resp.Status, OneLine(strings.TrimSpace(string(b)))}
	}
	return b, err
}

// errSilent is that of a program that accepts a connection, and nothing else.
var errSilent = fmt.Errorf("no answer within %s", statusTimeout)

// cause returns why there is no response to a request.
func cause(err error) error {
	var of net.Error // of a connection, or of the time
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errSilent
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return errors.New("the connection was closed without an answer")
	case errors.As(err, &of), errors.Is(err, context.Canceled):
		return err
	}
	return errForeign // it speaks no HTTP
}

// dialHere connects to an address. Without an answer on ::1 it tries 127.0.0.1: a daemon that was
// started while IPv6 was switched off is there.
func dialHere(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	at, wrong := netip.ParseAddrPort(address)
	if err == nil || wrong != nil || at.Addr() != netip.IPv6Loopback() {
		return c, err
	}
	if c, other := d.DialContext(ctx, network, role.Without6(at).String()); other == nil {
		return c, nil
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.ENETUNREACH) {
		err = &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED} // nobody is there
	}
	return nil, err
}

// answersAt returns the address at which a daemon answers, at itself if none does. See dialHere.
func answersAt(ctx context.Context, at netip.AddrPort) netip.AddrPort {
	at = role.Here(at)
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	c, err := dialHere(ctx, "tcp", at.String())
	if err != nil {
		return at
	}
	defer c.Close()
	if other, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		at = netip.AddrPortFrom(other.AddrPort().Addr().Unmap(), at.Port())
	}
	return at
}

// answerError is an HTTP response other than 200.
type answerError struct {
	code         int
	status, text string
}

func (e *answerError) Error() string {
	if e.code == http.StatusNotFound || e.text == "" {
		return "it answers " + e.status
	}
	return e.text
}

func printStatus(w io.Writer, s source, body []byte, asJSON bool) error {
	if asJSON {
		var compact bytes.Buffer
		if err := json.Compact(&compact, body); err != nil {
			return fmt.Errorf("its answer is not JSON: %w", err)
		}
		_, err := fmt.Fprintln(w, compact.String())
		return err
	}
	v, err := readObject(body)
	if err != nil {
		return fmt.Errorf("its answer is not a JSON object: %w", err)
	}
	name := s.name
	if name == "" {
		name = "status"
	}
	fmt.Fprintf(w, "%s at %s\n", name, s.at)
	return v.print(w, "  ")
}

// withoutMessages returns a status without the message counters of its sessions, which are too wide
// for an overview.
func withoutMessages(o object) (object, error) {
	raw, ok := o.values["sessions"]
	if !ok {
		return o, nil
	}
	var sessions []json.RawMessage
	if err := json.Unmarshal(raw, &sessions); err != nil {
		return o, err
	}
	for i, s := range sessions {
		one, err := readObject(s)
		if err != nil {
			return o, err
		}
		one.keys = slices.DeleteFunc(one.keys, func(key string) bool { return strings.HasPrefix(key, "messages_") })
		if sessions[i], err = one.encode(); err != nil {
			return o, err
		}
	}
	b, err := json.Marshal(sessions)
	o.values["sessions"] = b
	return o, err
}

// encode returns the object as JSON, with its keys in their order.
func (o object) encode() ([]byte, error) {
	var b bytes.Buffer
	for i, key := range o.keys {
		name, err := json.Marshal(key)
		if err != nil {
			return nil, err
		}
		b.WriteByte("{,"[min(i, 1)])
		b.Write(name)
		b.WriteByte(':')
		b.Write(o.values[key])
	}
	if len(o.keys) == 0 {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// object is a JSON object that keeps the order of its keys: a status has its most important ones
// first.
type object struct {
	keys   []string
	values map[string]json.RawMessage
}

func readObject(b []byte) (object, error) {
	o := object{values: map[string]json.RawMessage{}}
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil {
		return o, err
	} else if t != json.Delim('{') {
		return o, fmt.Errorf("it starts with %v", t)
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return o, err
		}
		key, ok := t.(string)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil || !ok {
			return o, err
		}
		o.keys = append(o.keys, key)
		o.values[key] = value
	}
	return o, nil
}

// print writes plain values beside their keys, lists of objects as tables, and objects indented.
func (o object) print(w io.Writer, indent string) error {
	plain := make([]column, 2)
	var later []string
	for _, key := range o.keys {
		if text, ok := plainText(o.values[key]); ok {
			plain[0], plain[1] = append(plain[0], label(key)), append(plain[1], text)
		} else {
			later = append(later, key)
		}
	}
	if err := printColumns(w, indent, plain, nil); err != nil {
		return err
	}
	for _, key := range later {
		fmt.Fprintf(w, "%s%s\n", indent, label(key))
		if sub, err := readObject(o.values[key]); err == nil {
			if err := sub.print(w, indent+"  "); err != nil {
				return err
			}
			continue
		}
		if err := printTable(w, indent+"  ", o.values[key]); err != nil {
			return err
		}
	}
	return nil
}

// statusWidth is how many columns a terminal has at least.
const statusWidth = 80

// printTable writes a list of objects, one per line, with the keys as columns in the order of their
// first occurrence. Columns in which every value is 0 or missing are omitted. Columns that do not
// fit into statusWidth follow below, in a table of their own that begins with those that tell the
// rows apart. A column that is too wide even there has its cells broken between words. A remedy has a
// line of its own below its row, as those of doctor, so that its command can be copied. Keys whose
// values are lists of objects follow as tables of their own.
func printTable(w io.Writer, indent string, raw json.RawMessage) error {
	var rows []json.RawMessage
	if err := json.Unmarshal(raw, &rows); err != nil {
		return err
	}
	var keys []string
	have := map[string]bool{}
	objects := make([]object, len(rows))
	for i, row := range rows {
		o, err := readObject(row)
		if err != nil {
			// Not a list of objects: printed as JSON.
			_, err := fmt.Fprintf(w, "%s%s\n", indent, OneLine(string(raw)))
			return err
		}
		objects[i] = o
		for _, key := range o.keys {
			if !have[key] {
				have[key] = true
				keys = append(keys, key)
			}
		}
	}
	var columns []column
	var remedies column
	var shownKeys, nested []string
	for _, key := range keys {
		if slices.ContainsFunc(objects, func(o object) bool { return len(o.list(key)) > 0 }) {
			nested = append(nested, key)
			continue
		}
		c := column{strings.ToUpper(label(key))}
		shown := false
		for _, o := range objects {
			cell := o.cell(key)
			shown = shown || cell != "" && cell != "0" && cell != "-"
			c = append(c, cell)
		}
		switch {
		case c[0] == remedyTitle:
			remedies = c
		case shown:
			columns, shownKeys = append(columns, c), append(shownKeys, key)
		}
	}
	if len(columns) == 0 {
		_, err := fmt.Fprintln(w, indent+"none")
		return err
	}
	names := columns[:naming(columns)]
	for rest := columns[len(names):]; ; {
		band := slices.Clone(names)
		for len(rest) > 0 && (len(band) == len(names) || len(indent)+width(band)+rest[0].width() <= statusWidth) {
			band, rest = append(band, rest[0]), rest[1:]
		}
		var below column
		if len(rest) == 0 {
			below = remedies
		}
		if err := printColumns(w, indent, band, below); err != nil {
			return err
		}
		if len(rest) == 0 {
			break
		}
	}
	for _, key := range nested {
		if err := printNested(w, indent, objects, shownKeys[:len(names)], key); err != nil {
			return err
		}
	}
	return nil
}

// printNested writes the lists of objects that the rows of a table have for a key as one table, which
// begins with the columns that name the rows.
func printNested(w io.Writer, indent string, rows []object, names []string, key string) error {
	var all []json.RawMessage
	for _, row := range rows {
		for _, o := range row.list(key) {
			of := object{values: maps.Clone(o.values)}
			for _, name := range names {
				if value, ok := row.values[name]; ok {
					of.keys, of.values[name] = append(of.keys, name), value
				}
			}
			of.keys = append(of.keys, slices.DeleteFunc(o.keys, func(k string) bool { return slices.Contains(names, k) })...)
			b, err := of.encode()
			if err != nil {
				return err
			}
			all = append(all, b)
		}
	}
	raw, err := json.Marshal(all)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s%s\n", indent, label(key))
	return printTable(w, indent+"  ", raw)
}

const (
	// leastCell is the width to which cells are broken at most.
	leastCell = 16
	// remedyTitle is that of a column whose cells are below their rows.
	remedyTitle = "REMEDY"
)

// printColumns writes columns beside each other. The last one gets what those before it leave of
// statusWidth, and below each of its cells what the row has in another column, if there is one.
func printColumns(w io.Writer, indent string, columns []column, below column) error {
	last := len(columns) - 1
	left := max(statusWidth-len(indent)-width(columns[:last]), leastCell)
	tw := tabwriter.NewWriter(w, 0, 0, columnGap, ' ', 0)
	for i := range columns[0] {
		cells := make([]string, last)
		for j, c := range columns[:last] {
			cells[j] = c[i]
		}
		lines := []string{columns[last][i]}
		if utf8.RuneCountInString(lines[0]) > left {
			lines = Wrap(lines[0], left)
		}
		if i > 0 && i < len(below) && below[i] != "" {
			lines = append(lines, "-> "+below[i])
		}
		for _, line := range lines {
			fmt.Fprintf(tw, "%s%s\n", indent, strings.Join(append(cells, line), "\t"))
			cells = make([]string, last)
		}
	}
	return tw.Flush()
}

// columnGap is how many spaces are between two columns.
const columnGap = 2

// column is the title of a column, if it has one, and its cells.
type column []string

func (c column) width() int {
	widest := 0
	for _, cell := range c {
		widest = max(widest, utf8.RuneCountInString(cell))
	}
	return widest
}

// width returns how many characters are before a further column.
func width(columns []column) int {
	sum := 0
	for _, c := range columns {
		sum += c.width() + columnGap
	}
	return sum
}

// naming returns how many columns from the first tell all rows apart, at most three.
func naming(columns []column) int {
	for n := 1; n <= min(3, len(columns)); n++ {
		seen := map[string]bool{}
		for row := 1; row < len(columns[0]); row++ {
			var name []string
			for _, c := range columns[:n] {
				name = append(name, c[row])
			}
			seen[strings.Join(name, "\x00")] = true
		}
		if len(seen) == len(columns[0])-1 {
			return n
		}
	}
	return 1
}

// list returns a value that is a list of objects.
func (o object) list(key string) (list []object) {
	var values []json.RawMessage
	if json.Unmarshal(o.values[key], &values) != nil {
		return nil
	}
	for _, raw := range values {
		of, err := readObject(raw)
		if err != nil {
			return nil
		}
		list = append(list, of)
	}
	return list
}

// cell returns the text of a value in a table; it is empty for a missing one. That of an object is
// its values other than 0 with their keys.
func (o object) cell(key string) string {
	raw, ok := o.values[key]
	if !ok {
		return ""
	}
	if text, ok := plainText(raw); ok {
		return text
	}
	sub, err := readObject(raw)
	if err != nil {
		return OneLine(string(raw))
	}
	var parts []string
	for _, key := range sub.keys {
		text, ok := plainText(sub.values[key])
		if !ok {
			return OneLine(string(raw))
		}
		if text != "0" {
			parts = append(parts, text+" "+label(key))
		}
	}
	return strings.Join(parts, ", ")
}

// plainText returns the text of a value that fits on a line: strings, numbers, booleans, and lists
// of these, without what breaks a table or controls a terminal.
func plainText(raw json.RawMessage) (string, bool) {
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return OneLine(string(raw)), true
	}
	switch v := v.(type) {
	case nil:
		return "-", true
	case bool:
		if v {
			return "yes", true
		}
		return "no", true
	case string:
		if v == "" {
			return "-", true
		}
		return OneLine(v), true
	case json.Number:
		return shortNumber(v), true
	case map[string]any:
		return "-", len(v) == 0
	case []any:
		var parts []string
		for _, e := range v {
			switch e := e.(type) {
			case string, json.Number:
				parts = append(parts, OneLine(fmt.Sprint(e)))
			default:
				return "", false
			}
		}
		if len(parts) == 0 {
			return "-", true
		}
		return strings.Join(parts, ", "), true
	}
	return "", false
}

// shortNumber rounds to thousandths what has more digits, as a mean has: nobody reads those.
func shortNumber(n json.Number) string {
	if f, err := n.Float64(); err == nil && strings.Contains(n.String(), ".") && math.Abs(f) >= 1 && math.Abs(f) < 1e15 {
		return strconv.FormatFloat(math.Round(f*1000)/1000, 'f', -1, 64)
	}
	return n.String()
}

func label(key string) string { return OneLine(strings.ReplaceAll(key, "_", " ")) }
