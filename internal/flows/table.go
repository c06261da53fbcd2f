package flows

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/tabane/tabane/internal/bpf/flowcount"
)

// Table shows snapshots as a table for people: MPTCP connections with their subflows, then other flows, busiest first.
type Table struct {
	w   io.Writer
	top int
	// every is how often it is drawn; rates are means since it last was.
	every time.Duration
	// size is that of the terminal, which is then written over again and again; nil where there is none.
	size  func() (columns, lines int)
	since time.Duration
	sum   [2]flowcount.Count
	lines int
}

// NewTable returns one that draws at most so often, with the connections and other flows that carry most, at most top of
// them or as many as fit when top is 0. size tells the size of the terminal, and is nil when w is none: tables are then
// written one after the other.
func NewTable(w io.Writer, top int, every time.Duration, size func() (columns, lines int)) *Table {
	return &Table{w: w, top: top, every: every, size: size}
}

// block is what is shown together: a connection and its subflows, or a flow of no connection.
type block struct {
	token uint32
	peer  netip.AddrPort
	bytes uint64
	rows  []*row
	byKey map[rowKey]*row
}

type rowKey struct {
	local, remote netip.AddrPort
	protocol      string
	iface         string
	sid           netip.Addr
}

// row is a subflow: what it sends to one SID, and what it receives.
type row struct {
	key            rowKey
	name           string
	sent, received uint64 // bytes since it was last drawn
	flow           *Flow  // one that knows the socket
}

// Write takes the snapshot and draws when it is time to. When last, it draws in any case.
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

func (t *Table) draw(s *Snapshot) string {
	columns, height := 0, 0
	if t.size != nil {
		columns, height = t.size()
	}
	var b strings.Builder
	blocks := t.blocks(s)
	fmt.Fprintf(&b, "%s  %s, %s  sent %s  received %s\n", s.Time.Format("15:04:05"), count(len(blocks), "connection"), count(len(s.Flows), "flow"),
		megabits(rate(t.sum[1].Bytes, t.since)), megabits(rate(t.sum[0].Bytes, t.since)))
	if notes := t.notes(s); notes != "" {
		fmt.Fprintln(&b, notes)
	}
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "CONNECTION\tLOCAL\tVIA\tSID\tMbit/s\tSHARE\tIN Mbit/s\tSRTT\tCWND\tRETRANS\tCC\tNOTE")
	used, shown := strings.Count(b.String(), "\n")+2, 0
	for _, bl := range blocks {
		lines := len(bl.rows) + 1
		if len(bl.rows) == 1 && bl.token == 0 {
			lines = 1
		}
		if t.top > 0 && shown == t.top || height > 0 && used+lines > height && shown > 0 {
			break
		}
		t.drawBlock(tw, bl, s.Time)
		used += lines
		shown++
	}
	_ = tw.Flush() // into memory
	if more := len(blocks) - shown; more > 0 {
		fmt.Fprintf(&b, "and %s more\n", count(more, "connection"))
	}
	return t.place(b.String(), columns, height)
}

// place cuts lines to the terminal and puts the cursor where the last table began.
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

func (t *Table) drawBlock(w io.Writer, bl *block, now time.Time) {
	for i, r := range bl.rows {
		name := r.name
		if bl.token != 0 {
			name = "  "
			if i == 0 {
				name = token(bl.token) + " " + bl.peer.String()
			}
		}
		share, state := "-", "-\t-\t-\t-\t"
		if bl.bytes > 0 {
			share = fmt.Sprintf("%.0f %%", 100*float64(r.sent)/float64(bl.bytes))
		}
		if socket, at := r.flow.Socket(); socket != nil {
			var notes []string
			if socket.BackupHere || socket.BackupThere {
				notes = append(notes, "backup")
			}
			if r.flow.Ended {
				notes = append(notes, "ended")
			}
			if age := now.Sub(at); age > time.Second {
				notes = append(notes, fmt.Sprintf("metrics %.0f s old", age.Seconds()))
			}
			state = fmt.Sprintf("%.1f ms\t%d\t%d\t%s\t%s", float64(socket.RTT.Microseconds())/1e3, socket.Window, socket.Retransmitted,
				plainName(socket.Congestion), strings.Join(notes, ", "))
		} else if r.flow.Ended {
			state += "ended"
		} else if r.flow.pair != nil && r.flow.pair.closed() {
			state += "closed"
		}
		sid := "-"
		if r.key.sid.IsValid() {
			sid = r.key.sid.String()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, r.key.local, cmp.Or(r.flow.Peer, "-"), sid,
			number2(rate(r.sent, t.since)), share, number2(rate(r.received, t.since)), state)
	}
	if len(bl.rows) > 1 {
		var received uint64
		for _, r := range bl.rows {
			received += r.received
		}
		fmt.Fprintf(w, "  sum\t\t\t\t%s\t\t%s\t\t\t\t\t\n", number2(rate(bl.bytes, t.since)), number2(rate(received, t.since)))
	}
}

// blocks puts the flows together, the busiest first.
func (t *Table) blocks(s *Snapshot) []*block {
	type blockKey struct {
		token    uint32
		a, b     netip.AddrPort
		protocol string
	}
	byKey := map[blockKey]*block{}
	var all []*block
	// Sent flows first, so that what is received finds its row.
	for _, sent := range []bool{true, false} {
		for _, f := range s.Flows {
			if f.Sent != sent {
				continue
			}
			key := blockKey{token: f.Token()}
			if key.token == 0 {
				key = blockKey{a: f.Local, b: f.Remote, protocol: f.Protocol}
			}
			bl := byKey[key]
			if bl == nil {
				bl = &block{token: key.token, peer: f.Remote, byKey: map[rowKey]*row{}}
				byKey[key] = bl
				all = append(all, bl)
			}
			bl.add(f)
		}
	}
	slices.SortStableFunc(all, func(a, b *block) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.total(), a.total()), cmp.Compare(a.token, b.token), a.peer.Compare(b.peer))
	})
	for _, bl := range all {
		slices.SortStableFunc(bl.rows, func(a, b *row) int {
			return cmp.Or(a.key.local.Compare(b.key.local), a.key.remote.Compare(b.key.remote), a.key.sid.Compare(b.key.sid))
		})
	}
	return all
}

// rank puts MPTCP before the rest.
func rank(b *block) int {
	if b.token != 0 {
		return 0
	}
	return 1
}

func (b *block) total() uint64 {
	sum := b.bytes
	for _, r := range b.rows {
		sum += r.received
	}
	return sum
}

func (b *block) add(f *Flow) {
	key := rowKey{f.Local, f.Remote, f.Protocol, f.Interface, f.SID}
	r := b.byKey[key]
	if r == nil && !f.Sent {
		// What comes back comes mostly another way: it is shown beside the first that is sent.
		for _, other := range b.rows {
			if other.key.local == f.Local && other.key.remote == f.Remote {
				r = other
				break
			}
		}
	}
	if r == nil {
		r = &row{key: key, name: f.Protocol + " " + f.Remote.String(), flow: f}
		b.byKey[key] = r
		b.rows = append(b.rows, r)
	}
	bytes := f.Total.Bytes - f.drawn
	if f.Sent {
		r.sent += bytes
		b.bytes += bytes
	} else {
		r.received += bytes
	}
}

// notes says what does not show in flows.
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
