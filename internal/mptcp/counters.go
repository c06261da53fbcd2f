package mptcp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"strconv"
	"strings"
)

// Counters count the connections of a network namespace that clients request with MPTCP, and what
// became of them.
type Counters struct {
	// Requested counts SYNs with MP_CAPABLE, those that were retransmitted included, and Accepted
	// the MPTCP connections that they opened.
	Requested uint64 `json:"requested"`
	Accepted  uint64 `json:"accepted"`
	// Stripped counts connections that became TCP because the client's ACK had no MP_CAPABLE, which
	// middleboxes remove.
	Stripped uint64 `json:"stripped"`
	// LostOptions counts connections that became TCP in the middle, because data came without
	// MPTCP's options (DssFallback, of Linux 6.17). Their receiver, on this host, may have got bytes
	// twice.
	LostOptions uint64 `json:"lost_options"`
	// TableFull counts connections, those of clients on this host included, that became TCP because
	// the kernel's table of tokens had no place; see TokenPlaces.
	TableFull uint64 `json:"table_full"`
	// BeyondWindow counts data that this host received, acknowledged on a subflow and dropped,
	// because it was beyond the window of the connection. The sender reinjects it by a timer, one
	// fragment at a time: the connection may stand still for seconds. Reinjected counts what this
	// host reinjected.
	BeyondWindow uint64 `json:"beyond_window"`
	Reinjected   uint64 `json:"reinjected"`
	// Joins counts SYNs of subflows, those that were retransmitted included, and Joined the
	// subflows that clients established.
	Joins  uint64 `json:"joins"`
	Joined uint64 `json:"joined"`
}

// ReadCounters returns the counters of the network namespace that the calling thread is in. Those
// that the kernel does not have are 0.
func ReadCounters() (Counters, error) {
	r, err := OpenCounters()
	if err != nil {
		return Counters{}, err
	}
	c, err := r.Read()
	return c, errors.Join(err, r.Close())
}

// A CounterReader reads the counters of one network namespace again and again. It is not safe for
// concurrent use.
type CounterReader struct {
	file   *os.File
	buffer []byte
}

// OpenCounters returns a reader for the network namespace that the calling thread is in. Close it.
func OpenCounters() (*CounterReader, error) {
	f, err := os.Open("/proc/thread-self/net/netstat")
	if err != nil {
		return nil, fmt.Errorf("read mptcp counters: %w", err)
	}
	return &CounterReader{file: f, buffer: make([]byte, 0, 16<<10)}, nil
}

// Read returns the counters.
func (r *CounterReader) Read() (Counters, error) {
	b := bytes.NewBuffer(r.buffer[:0])
	if _, err := b.ReadFrom(io.NewSectionReader(r.file, 0, 1<<20)); err != nil {
		return Counters{}, fmt.Errorf("read mptcp counters: %w", err)
	}
	r.buffer = b.Bytes()
	return parseCounters(r.buffer)
}

// Close closes the file.
func (r *CounterReader) Close() error { return r.file.Close() }

// parseCounters reads the lines of MPTcpExt, one with names and one with values.
func parseCounters(netstat []byte) (c Counters, err error) {
	var names []string
	for lines := bufio.NewScanner(bytes.NewReader(netstat)); lines.Scan(); {
		text, ok := strings.CutPrefix(lines.Text(), "MPTcpExt: ")
		switch {
		case !ok:
			continue
		case names == nil:
			names = strings.Fields(text)
			continue
		}
		values := strings.Fields(text)
		if len(values) != len(names) {
			return c, fmt.Errorf("read mptcp counters: %d values of %d", len(values), len(names))
		}
		into := map[string]*uint64{
			"MPCapableSYNRX": &c.Requested, "MPCapableACKRX": &c.Accepted, "MPCapableFallbackACK": &c.Stripped, "MPFallbackTokenInit": &c.TableFull,
			"DssFallback": &c.LostOptions, "NoDSSInWindow": &c.BeyondWindow, "MPTCPRetrans": &c.Reinjected,
			"MPJoinSynRx": &c.Joins, "MPJoinAckRx": &c.Joined,
		}
		for i, name := range names {
			if n := into[name]; n != nil {
				if *n, err = strconv.ParseUint(values[i], 10, 64); err != nil {
					return c, fmt.Errorf("read mptcp counter %q: %w", name, err)
				}
			}
		}
	}
	return c, nil
}

// Since returns the counters without those of before.
func (c Counters) Since(before Counters) Counters {
	return Counters{
		Requested: c.Requested - before.Requested, Accepted: c.Accepted - before.Accepted,
		Stripped: c.Stripped - before.Stripped, LostOptions: c.LostOptions - before.LostOptions, TableFull: c.TableFull - before.TableFull,
		BeyondWindow: c.BeyondWindow - before.BeyondWindow, Reinjected: c.Reinjected - before.Reinjected,
		Joins: c.Joins - before.Joins, Joined: c.Joined - before.Joined,
	}
}

// The kernel's table of tokens has a slot for each MB of memory, their number rounded up to a power
// of two, and four places in a slot (mptcp_token_init in net/mptcp/token.c).
const (
	maxTokenSlots = 64 << 10
	placesPerSlot = 4
)

// TokenPlaces returns about how many MPTCP connections a host with so much memory, in bytes, has
// tokens for. Connections between programs of one host need two.
func TokenPlaces(memory uint64) int {
	slots := uint64(1)
	if mb := memory >> 20; mb > 1 {
		slots = 1 << bits.Len64(mb-1)
	}
	return int(min(slots, maxTokenSlots)) * placesPerSlot
}
