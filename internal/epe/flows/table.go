package flows

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tabane/tabane/internal/epe/flowcount"
)

// Table writes snapshots as a table: MPTCP connections with their subflows, then other flows, then
// routing sessions, each ordered by rate.
type Table struct {
	w   io.Writer
	top int
	// every is the interval between tables; rates are means over it.
	every time.Duration
	// addresses is the number of addresses announced to a client; 0 if unknown.
	addresses int
	// size returns the size of the terminal, on which each table overwrites the previous one;
	// nil if there is no terminal.
	size  func() (columns, lines int)
	hint  string
	since time.Duration
	sum   [2]flowcount.Count
	lines int
	// use is that of the snapshot that is drawn.
	use func(*Flow) Use
}

// TableOptions configure a Table.
type TableOptions struct {
	// Top is the number of connections and other flows that are shown; 0 means as many as fit.
	Top int
	// Every is the minimum interval between two tables.
	Every time.Duration
	// Addresses is the number of addresses that this host may announce to a client; 0 if
	// unknown.
	Addresses int
	// Size returns the size of the terminal. If it is nil, tables are written one after the
	// other.
	Size func() (columns, lines int)
	// Hint is appended to the first line, for example a list of keys.
	Hint string
}

// NewTable returns a Table that writes to w.
func NewTable(w io.Writer, o TableOptions) *Table {
	return &Table{w: w, top: o.Top, every: o.Every, addresses: o.Addresses, size: o.Size, hint: o.Hint}
}

// block is a connection with its subflows or, by NAT sessions, paths, or a flow that belongs to no
// connection.
type block struct {
	nat     *translation
	token   uint32
	remote  netip.AddrPort
	routing bool
	sent    uint64 // bytes since the previous table
	rows    []*row
	byKey   map[rowKey]*row
}

type rowKey struct {
	local, remote netip.AddrPort
	protocol      string
	iface         string
	sid           netip.Addr
}

// row is a subflow: its sent bytes to one SID and its received bytes.
type row struct {
	key            rowKey
	sent, received uint64 // bytes since the previous table
	flow           *Flow  // a flow with a socket, if any
}

// Write adds the snapshot, and writes a table if one is due or if this is the last snapshot.
func (t *Table) Write(s *Snapshot, last bool) error {
	t.since += s.Elapsed
	for _, f := range s.Flows {
		d := &t.sum[f.key.Direction]
		*d = plus(*d, f.Delta)
	}
	if t.since < t.every && !last || t.since == 0 {
		return nil
	}
	text := t.draw(s)
	t.since, t.sum = 0, [2]flowcount.Count{}
	for _, f := range s.Flows {
		f.drawn = f.Total.Bytes
	}
	_, err := io.WriteString(t.w, text)
	return err
}

// titles are the columns, most important first; columns that do not fit are omitted.
var titles = [...]string{"Mbit/s", "SHARE", "PATH", "REMOTE", "SRTT ms", "IN Mbit/s", "RETRANS", "CWND", "LOCAL", "SID", "CC", "NOTE"}

// rightAligned marks the columns of numbers.
var rightAligned = [len(titles)]bool{0: true, 1: true, 4: true, 5: true, 6: true, 7: true}

// minColumns is the number of columns that are always shown, truncated if necessary.
const minColumns = 4

// line is a row of cells, or text across all columns.
type line struct {
	cells [len(titles)]string
	text  string
}

func (t *Table) draw(s *Snapshot) string {
	columns, height := 0, 0
	if t.size != nil {
		columns, height = t.size()
	}
	blocks := t.blocks(s)
	t.use = s.use
	routing := slices.IndexFunc(blocks, func(b *block) bool { return b.routing })
	if routing < 0 {
		routing = len(blocks)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s, %s  out %s  in %s", s.Time.Format("15:04:05"), count(routing, "connection"), count(len(s.Flows), "flow"),
		megabits(rate(t.sum[1].Bytes, t.since)), megabits(rate(t.sum[0].Bytes, t.since)))
	if t.hint != "" {
		b.WriteString("  " + t.hint)
	}
	b.WriteByte('\n')
	if notes := t.notes(s); notes != "" {
		fmt.Fprintln(&b, notes)
	}
	lines := []line{{cells: titles}}
	room := height - strings.Count(b.String(), "\n") - len(lines) - 1
	shown := 0
	for i, bl := range blocks {
		more := t.describe(bl, s.Time)
		if i == routing {
			more = slices.Insert(more, 0, line{text: "routing sessions:"})
		}
		if t.top > 0 && i == t.top && i < routing {
			break
		}
		if height > 0 && len(more) > room && shown > 0 {
			break
		}
		lines = append(lines, more...)
		room -= len(more)
		shown++
	}
	b.WriteString(layOut(lines, columns))
	if more := len(blocks) - shown; more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	return t.place(b.String(), columns, height)
}

// layOut aligns the cells in columns and omits those that do not fit into the terminal width; 0
// means no limit.
func layOut(lines []line, columns int) string {
	var widths [len(titles)]int
	for _, l := range lines {
		for i, c := range l.cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	shown, used := 0, -2
	for i, w := range widths {
		used += w + 2
		if columns > 0 && used > columns && i >= minColumns {
			break
		}
		shown++
	}
	var b strings.Builder
	for _, l := range lines {
		if l.text != "" {
			b.WriteString(l.text + "\n")
			continue
		}
		var row strings.Builder
		for i, c := range l.cells[:shown] {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if i > 0 {
				row.WriteString("  ")
			}
			if rightAligned[i] {
				row.WriteString(pad + c)
			} else {
				row.WriteString(c + pad)
			}
		}
		b.WriteString(strings.TrimRight(row.String(), " ") + "\n")
	}
	return b.String()
}

// place truncates lines to the terminal size and moves the cursor to the start of the previous
// table.
func (t *Table) place(text string, columns, height int) string {
	if t.size == nil {
		return text + "\n"
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if height > 1 && len(lines) > height-1 {
		lines = lines[:height-1]
	}
	var b strings.Builder
	if t.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", t.lines)
	}
	for _, l := range lines {
		if columns > 0 && utf8.RuneCountInString(l) > columns {
			l = string([]rune(l)[:columns])
		}
		b.WriteString(strings.TrimRight(l, " ") + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	t.lines = len(lines)
	return b.String()
}

// describe returns the lines of a block: for a connection its sum, its subflows, and the number of
// addresses that its client did not join.
func (t *Table) describe(bl *block, now time.Time) []line {
	var lines []line
	indent := ""
	if bl.token != 0 || bl.nat != nil {
		var received uint64
		for _, r := range bl.rows {
			received += r.received
		}
		name, remote := "mptcp "+token(bl.token), bl.remote.String()
		if bl.nat != nil {
			name, remote = "nat "+bl.nat.protocol+" "+natEnd(bl.nat.host), natEnd(bl.nat.far)
		}
		if u := t.use(bl.rows[0].flow); u.Policy != "" {
			name += " " + u.Policy
		}
		lines = append(lines, line{cells: [len(titles)]string{
			0: number2(rate(bl.sent, t.since)), 2: name, 3: remote, 5: number2(rate(received, t.since)),
		}})
		indent = "  "
	}
	for _, r := range bl.rows {
		lines = append(lines, t.describeRow(bl, r, indent, now))
	}
	if joined, unjoined := bl.rows[0].flow.Unjoined(); unjoined {
		reset := bl.rows[0].flow.Reset()
		switch {
		case reset != "" && t.addresses > joined:
			lines = append(lines, line{text: fmt.Sprintf("  client has %d of %d addresses: %s", joined, t.addresses, reset)})
		case reset != "" && joined == 0:
			lines = append(lines, line{text: "  client has no announced address: " + reset})
		case t.addresses > joined:
			lines = append(lines, line{text: fmt.Sprintf("  client took %d of %d addresses; see ip mptcp limits there", joined, t.addresses)})
		case joined == 0:
			lines = append(lines, line{text: "  client took no announced address; see ip mptcp limits there"})
		}
	}
	return lines
}

func (t *Table) describeRow(bl *block, r *row, indent string, now time.Time) line {
	path := []string{indent + cmp.Or(r.flow.Path, r.flow.Peer, sidName(r.key.sid), r.key.iface)}
	if indent == "" {
		path[0] = r.flow.Protocol + " " + path[0]
	}
	l := line{cells: [len(titles)]string{
		0: number2(rate(r.sent, t.since)), 1: "-", 3: r.flow.Remote.String(), 4: "-", 5: number2(rate(r.received, t.since)),
		6: "-", 7: "-", 8: r.flow.Local.String(), 9: cmp.Or(sidName(r.key.sid), "-"),
	}}
	if bl.sent > 0 {
		l.cells[1] = fmt.Sprintf("%.0f %%", 100*float64(r.sent)/float64(bl.sent))
	}
	if socket, at := r.flow.Socket(); socket != nil {
		switch u := t.use(r.flow); {
		case u.Reason != "":
			path = append(path, u.Reason)
		case socket.BackupHere || socket.BackupThere:
			path = append(path, "backup")
		}
		if age := now.Sub(at); age > time.Second {
			l.cells[11] = fmt.Sprintf("metrics %.0f s old", age.Seconds())
		}
		l.cells[4] = fmt.Sprintf("%.1f", float64(socket.RTT.Microseconds())/1e3)
		l.cells[6], l.cells[7], l.cells[10] = fmt.Sprint(socket.Retransmitted), fmt.Sprint(socket.Window), plainName(socket.Congestion)
	} else if !r.flow.Ended && r.flow.pair != nil && r.flow.pair.closed() {
		path = append(path, "closed")
	}
	if r.flow.Ended {
		path = append(path, "ended")
	}
	l.cells[2] = strings.Join(path, ", ")
	return l
}

// sidName returns the SID as text, empty for packets that are not encapsulated.
func sidName(sid netip.Addr) string {
	if !sid.IsValid() {
		return ""
	}
	return sid.String()
}

// blocks groups the flows: connections by rate, then other flows, then routing sessions.
func (t *Table) blocks(s *Snapshot) []*block {
	type blockKey struct {
		token    uint32
		nat      *translation
		a, b     netip.AddrPort
		protocol string
	}
	overPaths := map[*translation]bool{}
	for _, f := range s.Flows {
		if f.nat != nil && f.Path != "" {
			overPaths[f.nat.whole()] = true
		}
	}
	byKey := map[blockKey]*block{}
	var all []*block
	// Process sent flows first, because received flows are added to their rows.
	for _, sent := range []bool{true, false} {
		for _, f := range s.Flows {
			if f.Sent != sent {
				continue
			}
			key := blockKey{token: f.Token()}
			if f.nat != nil {
				n := f.nat.whole()
				if f.Path == "" && overPaths[n] {
					continue // of the LAN: the same packets as on the paths
				}
				if f.Path != "" {
					key.nat = n
				}
			}
			if key.token == 0 && key.nat == nil {
				key = blockKey{a: f.Local, b: f.Remote, protocol: f.Protocol}
			}
			bl := byKey[key]
			if bl == nil {
				bl = &block{token: key.token, nat: key.nat, remote: f.Remote, routing: f.Routing(), byKey: map[rowKey]*row{}}
				byKey[key] = bl
				all = append(all, bl)
			}
			bl.add(f)
		}
	}
	slices.SortStableFunc(all, func(a, b *block) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.total(), a.total()), cmp.Compare(a.token, b.token), a.remote.Compare(b.remote))
	})
	for _, bl := range all {
		slices.SortStableFunc(bl.rows, func(a, b *row) int {
			return cmp.Or(cmp.Compare(a.flow.Path, b.flow.Path), a.key.local.Compare(b.key.local), a.key.remote.Compare(b.key.remote), a.key.sid.Compare(b.key.sid))
		})
	}
	return all
}

// rank orders MPTCP and NAT sessions before other flows, and routing sessions last.
func rank(b *block) int {
	switch {
	case b.routing:
		return 2
	case b.token == 0 && b.nat == nil:
		return 1
	}
	return 0
}

func (b *block) total() uint64 {
	sum := b.sent
	for _, r := range b.rows {
		sum += r.received
	}
	return sum
}

func (b *block) add(f *Flow) {
	key := rowKey{f.Local, f.Remote, f.Protocol, f.Interface, f.SID}
	if b.nat != nil {
		// Each direction has the address of a gateway in place of another host's.
		key = rowKey{iface: f.Interface}
	}
	r := b.byKey[key]
	if r == nil && !f.Sent && b.nat == nil {
		// Received packets often take another path, so they are shown with the first sent
		// flow.
		for _, other := range b.rows {
			if other.key.local == f.Local && other.key.remote == f.Remote {
				r = other
				break
			}
		}
	}
	if r == nil {
		r = &row{key: key, flow: f}
		b.byKey[key] = r
		b.rows = append(b.rows, r)
	}
	bytes := f.Total.Bytes - f.drawn
	if f.Sent {
		r.sent += bytes
		b.sent += bytes
	} else {
		r.received += bytes
	}
}

// notes returns a line with the packets that belong to no flow.
func (t *Table) notes(s *Snapshot) string {
	var parts []string
	for r, c := range s.Unparsed {
		if c.Packets > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", flowcount.Reason(r), c.Packets))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "packets of no flow: " + strings.Join(parts, ", ")
}

func megabits(bitsPerSecond float64) string { return number2(bitsPerSecond) + " Mbit/s" }

func number2(bitsPerSecond float64) string { return fmt.Sprintf("%.2f", bitsPerSecond/1e6) }

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
