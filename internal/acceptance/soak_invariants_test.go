package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tabane/tabane/internal/iproute"
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
		for _, transport := range []string{"mptcp", "tcp"} {
			s.streams.running.Add(1)
			go func() {
				defer s.streams.running.Done()
				for refused := 0; ctx.Err() == nil && refused < 5; {
					why := s.stream(x.name, transport)
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
func (s *soakTest) stream(server, transport string) string {
	args := []string{program, "fetch", "--json", fmt.Sprintf("--limit=%ds", 4*streamTime)}
	if transport == "mptcp" {
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
	if r.Bytes != streamRate/8*streamTime || r.MPTCP != (transport == "mptcp") {
		return fmt.Sprintf("%d bytes of %d in %s, mptcp %t, longest gap %s", r.Bytes, streamRate/8*streamTime, time.Duration(r.Lasted), r.MPTCP, time.Duration(r.Gap))
	}
	return ""
}

// end waits for the downloads that are running.
func (s *soakTest) endStreams() {
	s.streams.stop()
	s.streams.running.Wait()
	s.lab.t.Logf("downloads: %v complete, %d connections not made while routes changed", s.streams.complete, s.streams.refused)
	for _, transport := range []string{"mptcp", "tcp"} {
		if s.streams.complete[transport] == 0 {
			s.lab.t.Errorf("no download over %s: the soak shows nothing", transport)
		}
	}
}

// usage is what one instance of a daemon used over time.
type usage struct {
	daemon string
	at     []time.Time
	rss    []int // bytes
}

const (
	// warmUp is how long the memory of an instance may grow, longLived how long one has to live after
	// that for its memory to be judged.
	warmUp    = time.Minute
	longLived = 3 * time.Minute
	// Memory is flat when the medians of its first and last third differ by no more than this
	// share, plus what a few pages more or less of the runtime are.
	flatShare = 0.10
	flatBytes = 4 << 20
	// spareFiles are files that a daemon may have open for a moment, such as requests for its status.
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
		if fields := strings.Fields(string(b)); len(fields) > 1 {
			pages, err := strconv.Atoi(fields[1])
			if err != nil {
				s.lab.t.Fatal(err)
			}
			if pages > 0 {
				u.at, u.rss = append(u.at, time.Now()), append(u.rss, pages*os.Getpagesize())
			}
		}
	}
}

// judgeMemory fails the test for each instance whose memory grows.
func (s *soakTest) judgeMemory() {
	s.lab.t.Helper()
	median := func(list []int) int {
		list = slices.Sorted(slices.Values(list))
		return list[len(list)/2]
	}
	judged := 0
	most := map[string]int{}
	for _, u := range s.memory {
		if len(u.at) == 0 {
			continue
		}
		most[u.daemon] = max(most[u.daemon], slices.Max(u.rss))
		warm := slices.IndexFunc(u.at, func(at time.Time) bool { return at.Sub(u.at[0]) > warmUp })
		if warm < 0 || u.at[len(u.at)-1].Sub(u.at[warm]) < longLived {
			continue
		}
		judged++
		rss := u.rss[warm:]
		first, last := median(rss[:len(rss)/3+1]), median(rss[len(rss)-len(rss)/3-1:])
		text := fmt.Sprintf("%s: memory %.1f MB in the first third of %s, %.1f MB in the last", u.daemon, float64(first)/1e6, u.at[len(u.at)-1].Sub(u.at[warm]).Round(time.Second), float64(last)/1e6)
		s.lab.t.Log(text)
		if float64(last) > float64(first)*(1+flatShare)+flatBytes {
			s.lab.t.Errorf("%s: it grows", text)
		}
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(most)) {
		fmt.Fprintf(&text, " %s %.1f,", name, float64(most[name])/1e6)
	}
	s.lab.t.Logf("most memory in MB:%s; %d instances lived long enough for a trend", strings.TrimSuffix(text.String(), ","), judged)
}

var (
	nexthopID = regexp.MustCompile(`\b(nhid|id) \d+`)
	// volatile are routes of the kernel's own that depend on how links came up.
	volatile = regexp.MustCompile(`^(multicast|anycast|local|fe80|ff00)`)
)

// state is what a node has in its kernel, in a fixed order and without numbers that the kernel
// chooses.
func (s *soakTest) state(node string) []string {
	text := nexthopID.ReplaceAllString(s.ip(node, "rule; nexthop; route show table all; addr show scope global; mptcp endpoint"), "$1")
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
	sockets, _ := s.sockets(node, iproute.Established)
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
			if regexp.MustCompile(`proto 11[678]|nhid|seg6|lookup 1\d\d|lookup 0|signal|2001:db8:1::\d:|unreachable`).MatchString(line) {
				s.lab.t.Errorf("left by %s on %s: %s", role, node, line)
			}
		}
		if n := s.connections(node); n > 0 {
			s.lab.t.Errorf("left by %s on %s: %d connections of BGP", role, node, n)
		}
	}
}
