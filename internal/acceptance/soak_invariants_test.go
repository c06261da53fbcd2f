package acceptance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/role"
)

// streams are the downloads during a soak, one after the other: over MPTCP and over TCP, from each
// server.
type streams struct {
	stop    func()
	running sync.WaitGroup

	mu       sync.Mutex
	complete map[string]int
	// refused are connections that could not be made: while routes change, a router may answer that
	// a server is unreachable.
	refused int
}

func (s *soakTest) startStreams() {
	ctx, cancel := context.WithCancel(context.Background())
	s.lab.t.Cleanup(cancel)
	s.streams.stop, s.streams.complete = cancel, map[string]int{}
	for _, x := range s.servers {
		for _, transport := range []string{"mptcp", "tcp", "mptcp over IPv4", "tcp over IPv4"} {
			s.streams.running.Add(1)
			go func() {
				defer s.streams.running.Done()
				at, mptcp := x.name, strings.HasPrefix(transport, "mptcp")
				if strings.HasSuffix(transport, "IPv4") {
					at = x.address4
				}
				for refused := 0; ctx.Err() == nil && refused < 5; {
					why := s.stream(at, mptcp)
					s.streams.mu.Lock()
					switch {
					case why == "":
						s.streams.complete[transport]++
						refused = 0
					case strings.Contains(why, "dial") || strings.Contains(why, "connect"):
						s.streams.refused++
						if refused++; refused == 5 {
							s.lab.t.Errorf("%s over %s: no connection five times: %s", x.name, transport, why)
						}
					default:
						s.lab.t.Errorf("%s: a connection to %s over %s is lost: %s", time.Now().Format("15:04:05.000"), x.name, transport, why)
					}
					s.streams.mu.Unlock()
				}
			}()
		}
	}
}

// stream downloads once and returns what is wrong with that.
func (s *soakTest) stream(server string, mptcp bool) string {
	args := []string{program, "fetch", "--json", fmt.Sprintf("--limit=%ds", 4*streamTime)}
	if mptcp {
		args = append(args, "--mptcp")
	}
	cmd := s.command("client", append(args, fmt.Sprintf("http://%s/cbr?rate=%dbit/s&duration=%ds", server, streamRate, streamTime))...)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil {
		return fmt.Sprintf("%v: %s", err, strings.TrimSpace(diag.String()))
	}
	var r struct {
		Bytes  int64 `json:"bytes"`
		MPTCP  bool  `json:"used_mptcp"`
		Gap    int64 `json:"longest_gap_ns"`
		Lasted int64 `json:"duration_ns"`
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return fmt.Sprintf("%v in %q", err, out.String())
	}
	if r.Bytes != streamRate/8*streamTime || r.MPTCP != mptcp {
		return fmt.Sprintf("%d bytes of %d in %s, mptcp %t, longest gap %s", r.Bytes, streamRate/8*streamTime, time.Duration(r.Lasted), r.MPTCP, time.Duration(r.Gap))
	}
	return ""
}

// end waits for the downloads that are running.
func (s *soakTest) endStreams() {
	s.streams.stop()
	s.streams.running.Wait()
	s.lab.t.Logf("downloads: %v complete, %d connections not made while routes changed", s.streams.complete, s.streams.refused)
	for _, transport := range []string{"mptcp", "tcp", "mptcp over IPv4", "tcp over IPv4"} {
		if s.streams.complete[transport] == 0 {
			s.lab.t.Errorf("no download over %s: the soak shows nothing", transport)
		}
	}
}

// usage is what one instance of a daemon used over time.
type usage struct {
	daemon    string
	at        []time.Time
	anonymous []int // bytes
	// heap is what the last garbage collection found in use, in bytes, and goroutines how many
	// there were, both read at readAt.
	readAt           []time.Time
	heap, goroutines []int
}

const (
	// warmUp is how long the memory of an instance may grow, longLived how long one has to live
	// after that for its heap to be judged, and settledAfter for what it occupies, which the
	// runtime lets grow for minutes.
	warmUp       = time.Minute
	longLived    = 3 * time.Minute
	settledAfter = 8 * time.Minute
	// What a daemon occupies is flat when its trend adds no more than this share, plus what a few
	// pages more or less of the runtime are: a busy moment leaves a process larger, and a leak does
	// not end. The heap and the goroutines are not forgiven that: they are flat when the median of
	// their last third exceeds that of their first one by no more than this.
	flatShare      = 0.10
	flatBytes      = 4 << 20
	flatHeap       = 1 << 20
	flatGoroutines = 20
	// readEvery is how often the heap and the goroutines are read.
	readEvery = 5 * time.Second
	// spareFiles are files that a daemon may have open for a moment, such as requests for its
	// status.
	spareFiles = 6
)

// measure notes the memory of all daemons.
func (s *soakTest) measure() {
	s.lab.t.Helper()
	for name, i := range s.daemons.all {
		u := s.memory[i]
		if u == nil {
			u = &usage{daemon: name}
			s.memory[i] = u
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", i.pid))
		if err != nil {
			continue // ended by the soak
		}
		// Pages of the program's file, which grow with what it has executed, are the kernel's to
		// drop.
		var size, resident, file int
		if _, err := fmt.Sscan(string(b), &size, &resident, &file); err != nil {
			s.lab.t.Fatal(err)
		}
		if resident > file {
			u.at, u.anonymous = append(u.at, time.Now()), append(u.anonymous, (resident-file)*os.Getpagesize())
		}
		if n := len(u.readAt); n == 0 || time.Since(u.readAt[n-1]) > readEvery {
			// The heap is 0 before the first collection.
			if heap, goroutines, err := s.daemons.uses(name); err == nil && heap > 0 {
				u.readAt, u.heap, u.goroutines = append(u.readAt, time.Now()), append(u.heap, heap), append(u.goroutines, goroutines)
			}
		}
	}
}

// uses reads what the last garbage collection of a daemon found in use, in bytes, and how many
// goroutines it has.
func (d *daemons) uses(name string) (heap, goroutines int, err error) {
	node, daemon, _ := strings.Cut(name, " ")
	roles := role.All()
	port := roles[slices.IndexFunc(roles, func(r role.Descriptor) bool { return r.Name == daemon })].StatusPort
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = netns.Do("tabane-"+d.lab.name+"-"+node, func() error { c, err = (&net.Dialer{}).DialContext(ctx, network, address); return err })
		return c, err
	}}}
	answer, err := client.Get(fmt.Sprintf("http://[::1]:%d/metrics", port))
	if err != nil {
		return 0, 0, err
	}
	defer answer.Body.Close()
	wanted := map[string]*int{"go_gc_heap_live_bytes": &heap, "go_goroutines": &goroutines}
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		metric, text, _ := strings.Cut(lines.Text(), " ")
		if value := wanted[metric]; value != nil {
			f, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return 0, 0, err
			}
			*value = int(f)
			delete(wanted, metric)
		}
	}
	if len(wanted) > 0 {
		return 0, 0, fmt.Errorf("%s: no %v", name, slices.Sorted(maps.Keys(wanted)))
	}
	return heap, goroutines, nil
}

// judgeMemory fails the test for each instance whose memory, heap or number of goroutines grows.
func (s *soakTest) judgeMemory() {
	s.lab.t.Helper()
	judged := 0
	most := map[string]int{}
	for _, u := range s.memory {
		if len(u.at) == 0 {
			continue
		}
		most[u.daemon] = max(most[u.daemon], slices.Max(u.anonymous))
		for _, x := range []struct {
			name   string
			unit   float64
			at     []time.Time
			values []int
			lived  time.Duration
			grows  func(values []int) bool
		}{
			{"MB of memory", 1e6, u.at, u.anonymous, settledAfter, occupiesMore},
			{"MB of heap", 1e6, u.readAt, u.heap, longLived, func(values []int) bool { return rises(values, flatHeap) }},
			{"goroutines", 1, u.readAt, u.goroutines, longLived, func(values []int) bool { return rises(values, flatGoroutines) }},
		} {
			warm := slices.IndexFunc(x.at, func(at time.Time) bool { return at.Sub(x.at[0]) > warmUp })
			if warm < 0 || x.at[len(x.at)-1].Sub(x.at[warm]) < x.lived {
				continue
			}
			judged++
			m := thirds(x.values[warm:])
			text := fmt.Sprintf("%s: %.1f, %.1f, %.1f %s in the thirds of %s", u.daemon, float64(m[0])/x.unit, float64(m[1])/x.unit, float64(m[2])/x.unit, x.name, x.at[len(x.at)-1].Sub(x.at[warm]).Round(time.Second))
			s.lab.t.Log(text)
			if x.grows(x.values[warm:]) {
				s.lab.t.Errorf("%s: it grows", text)
			}
		}
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(most)) {
		fmt.Fprintf(&text, " %s %.1f,", name, float64(most[name])/1e6)
	}
	s.lab.t.Logf("most memory in MB:%s; %d instances lived long enough for a trend", strings.TrimSuffix(text.String(), ","), judged)
}

// median returns that of some values.
func median(values []int) int {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// thirds returns the medians of the thirds of some measurements.
func thirds(values []int) [3]int {
	n := len(values)
	return [3]int{median(values[:n/3+1]), median(values[n/3 : n-n/3]), median(values[n-n/3-1:])}
}

// rises reports whether values do, by more than a share and an amount.
func rises(values []int, amount float64) bool {
	m := thirds(values)
	return float64(m[2]) > float64(m[0])*(1+flatShare)+amount
}

// occupiesMore reports whether resident memory grows, to the end: the median slope between two
// measurements (Theil, Sen), which a step near the begin or the end does not change, times their
// number, and the last third over the one before.
func occupiesMore(bytes []int) bool {
	if m := thirds(bytes); float64(m[2]) <= float64(m[1])*(1+flatShare/2)+flatBytes/2 {
		return false
	}
	const points = 300
	stride := max(1, len(bytes)/points)
	var slopes []int // bytes over the whole time
	for i := 0; i < len(bytes); i += stride {
		for k := i + stride; k < len(bytes); k += stride {
			slopes = append(slopes, (bytes[k]-bytes[i])*len(bytes)/(k-i))
		}
	}
	return len(slopes) > 0 && float64(median(slopes)) > flatShare*float64(median(bytes))+flatBytes
}

var (
	nexthopID = regexp.MustCompile(`\b(nhid|id) \d+`)
	// volatile are routes of the kernel's own that depend on how links came up.
	volatile = regexp.MustCompile(`^(multicast|anycast|broadcast|local|fe80|ff00)`)
)

// state is what a node has in its kernel, in a fixed order and without numbers that the kernel
// chooses.
func (s *soakTest) state(node string) []string {
	text := nexthopID.ReplaceAllString(s.ip(node, "rule; nexthop; route show table all; -4 rule; -4 route show table all; addr show scope global; mptcp endpoint"), "$1")
	return slices.DeleteFunc(objects(text), func(line string) bool { return line == "" || volatile.MatchString(line) })
}

// checkWhole compares each node with how it was before the first disturbance: its kernel state, the
// connections of BGP, and the files that its daemon has open.
func (s *soakTest) checkWhole() {
	s.lab.t.Helper()
	for name, i := range s.daemons.all {
		node, _, _ := strings.Cut(name, " ")
		if s.undisturbed[node] == nil {
			s.undisturbed[node] = s.state(node)
			s.sessions[node], s.files0[name] = s.connections(node), openFiles(i.pid)
			continue
		}
		s.eventually(node+" as before", stateBack, func() (bool, string) {
			now := s.state(node)
			return slices.Equal(now, s.undisturbed[node]), difference(s.undisturbed[node], now)
		})
		s.eventually(node+" has the sessions as before", 2*stateBack, func() (bool, string) {
			n := s.connections(node)
			return n == s.sessions[node], fmt.Sprintf("%d connections, %d before", n, s.sessions[node])
		})
		s.eventually(name+" has no more files open than before", stateBack, func() (bool, string) {
			n := openFiles(i.pid)
			return n <= s.files0[name]+spareFiles, fmt.Sprintf("%d files, %d before", n, s.files0[name])
		})
	}
}

// difference shows the lines that only one of two sorted lists has.
func difference(before, now []string) string {
	var text strings.Builder
	for _, line := range before {
		if !slices.Contains(now, line) {
			fmt.Fprintln(&text, "-", line)
		}
	}
	for _, line := range now {
		if !slices.Contains(before, line) {
			fmt.Fprintln(&text, "+", line)
		}
	}
	if text.Len() == 0 {
		return fmt.Sprintf("%d lines before, %d now", len(before), len(now))
	}
	return text.String()
}

// connections counts the established connections of BGP on a node.
func (s *soakTest) connections(node string) int {
	sockets, _ := s.sockets(node, netnstest.Established)
	n := 0
	for _, x := range sockets {
		if x.Local.Port() == 179 || x.Remote.Port() == 179 {
			n++
		}
	}
	return n
}

func openFiles(pid int) int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0
	}
	return len(entries)
}

// checkLogs fails the test for what daemons must not log.
func (s *soakTest) checkLogs() {
	s.lab.t.Helper()
	check := func(name string, text string) {
		for line := range strings.Lines(text) {
			if strings.Contains(line, "panic:") || strings.Contains(line, "BUG:") || strings.Contains(line, "level=ERROR") || strings.Contains(line, "DATA RACE") {
				s.lab.t.Errorf("%s logged %s", name, strings.TrimSpace(line))
			}
		}
	}
	logs, err := filepath.Glob(filepath.Join("/run/tabane/lab", s.lab.name, "*.log"))
	if err != nil || len(logs) == 0 {
		s.lab.t.Fatalf("no logs: %v", err)
	}
	for _, log := range logs {
		b, err := os.ReadFile(log)
		if err != nil {
			s.lab.t.Fatal(err)
		}
		check(filepath.Base(log), string(b))
	}
}

// checkStop stops all daemons: their kernels have nothing of them then.
func (s *soakTest) checkStop() {
	s.lab.t.Helper()
	for name := range s.daemons.all {
		s.daemons.end(name, syscall.SIGTERM)
		node, role, _ := strings.Cut(name, " ")
		for _, line := range s.state(node) {
			if regexp.MustCompile(`proto 11[678]|nhid|seg6|lookup 1\d\d|signal|2001:db8:1::(2|4)\d|10\.1\.0\.(3[2-9]|6[4-9]|7[01])\b|\b240\.|unreachable`).MatchString(line) {
				s.lab.t.Errorf("left by %s on %s: %s", role, node, line)
			}
		}
		if n := s.connections(node); n > 0 {
			s.lab.t.Errorf("left by %s on %s: %d connections of BGP", role, node, n)
		}
	}
}
