package acceptance

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/testkit/programs"
)

// scaleScenario is a chain: a transit with a generated table, a border router, a reflector, a
// server. The second transit makes single changes. The nodes of FRR are the same chain, from the
// same transit.
const scaleScenario = `name: scale
title: EPE Routes in numbers
question: How long does a full table take, and how much memory?
nodes:
  server:
    edge:
      asn: 65000
      router_id: 10.0.0.10
      interface: lan
      address: 2001:db8:1::10
      prefix: 2001:db8:1::/64
      reflectors: [{address: "2001:db8:1::fe"}]
      locators: [fc00::/16]
      peers:
        - {name: transit-a, rt: "65000:101", address: "2001:db8:1::a", table: 101}
        - {name: transit-b, rt: "65000:102", address: "2001:db8:1::b", table: 102}
  reflector:
    reflector:
      asn: 65000
      router_id: 10.0.0.254
      address: 2001:db8:1::fe
      clients:
        - {name: server, address: "2001:db8:1::10"}
        - {name: asbr, address: "2001:db8:1::1", locator: "fc00:1::/32", bfd: {interval: 50ms}}
  asbr:
    forwarding: true
    asbr:
      asn: 65000
      router_id: 10.0.0.1
      address: 2001:db8:1::1
      locator: {prefix: "fc00:1::/32", block: 16}
      prefixes: [2001:db8:1::/64]
      reflectors: [{address: "2001:db8:1::fe", bfd: {interval: 50ms}}]
      peers:
        - {name: transit-a, asn: 65001, address: "2001:db8:a::2", interface: wan-a, id: 1, table: 101, rt: "65000:101", bfd: {interval: 50ms}}
        - {name: transit-b, asn: 65002, address: "2001:db8:b::2", interface: wan-b, id: 2, table: 102, rt: "65000:102"}
  transit-a:
    forwarding: true
    router:
      asn: 65001
      router_id: 10.1.0.1
      networks: [2c0f:ffff::/32]
      neighbors:
        - {name: asbr, asn: 65000, address: "2001:db8:a::1", interface: csp, bfd: {interval: 50ms}}
        - {name: frr-border, asn: 65009, address: "2001:db8:f::2", interface: frr}
  transit-b:
    forwarding: true
    router:
      asn: 65002
      router_id: 10.2.0.1
      networks: [2c0f:fffe::/32]
      neighbors:
        - {name: asbr, asn: 65000, address: "2001:db8:b::1", interface: csp}
  frr-border: {forwarding: true}
  frr-reflector: {forwarding: true}
  frr-server: {forwarding: true}
links:
  csp:
    ends:
      - {node: server, interface: lan, addresses: ["2001:db8:1::10/64"]}
      - {node: reflector, interface: lan, addresses: ["2001:db8:1::fe/64"]}
      - {node: asbr, interface: lan, addresses: ["2001:db8:1::1/64"]}
  peering-a:
    ends:
      - {node: asbr, interface: wan-a, addresses: ["2001:db8:a::1/64"]}
      - {node: transit-a, interface: csp, addresses: ["2001:db8:a::2/64"]}
  peering-b:
    ends:
      - {node: asbr, interface: wan-b, addresses: ["2001:db8:b::1/64"]}
      - {node: transit-b, interface: csp, addresses: ["2001:db8:b::2/64"]}
  frr:
    ends:
      - {node: transit-a, interface: frr, addresses: ["2001:db8:f::1/64"]}
      - {node: frr-border, interface: wan, addresses: ["2001:db8:f::2/64"]}
  frr-lan:
    ends:
      - {node: frr-border, interface: lan, addresses: ["2001:db8:2::1/64"]}
      - {node: frr-reflector, interface: lan, addresses: ["2001:db8:2::fe/64"]}
      - {node: frr-server, interface: lan, addresses: ["2001:db8:2::10/64"]}
`

// frrScale has the configurations of the nodes of FRR: plain IPv6 unicast, since FRR needs a VRF
// for each egress peer for the rest. The border router has a session with the reflector only in the
// chain.
var frrScale = map[string]string{
	"frr-border": `frr version 8
log stdout notifications
router bgp 65009
 bgp router-id 10.9.0.1
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 neighbor 2001:db8:f::1 remote-as 65001
 neighbor 2001:db8:f::1 timers connect 1
 neighbor 2001:db8:2::fe remote-as 65009
 neighbor 2001:db8:2::fe timers connect 1
 address-family ipv6 unicast
  neighbor 2001:db8:f::1 activate
  neighbor 2001:db8:2::fe activate
  neighbor 2001:db8:2::fe next-hop-self
 exit-address-family
`,
	"frr-reflector": `frr version 8
log stdout notifications
router bgp 65009
 bgp router-id 10.9.0.254
 bgp cluster-id 10.9.0.254
 no bgp default ipv4-unicast
 neighbor 2001:db8:2::1 remote-as 65009
 neighbor 2001:db8:2::1 timers connect 1
 neighbor 2001:db8:2::10 remote-as 65009
 neighbor 2001:db8:2::10 timers connect 1
 address-family ipv6 unicast
  neighbor 2001:db8:2::1 activate
  neighbor 2001:db8:2::1 route-reflector-client
  neighbor 2001:db8:2::10 activate
  neighbor 2001:db8:2::10 route-reflector-client
 exit-address-family
`,
	"frr-server": `frr version 8
log stdout notifications
router bgp 65009
 bgp router-id 10.9.0.10
 no bgp default ipv4-unicast
 neighbor 2001:db8:2::fe remote-as 65009
 neighbor 2001:db8:2::fe timers connect 1
 address-family ipv6 unicast
  neighbor 2001:db8:2::fe activate
 exit-address-family
`,
}

// scaleRow are the measurements of one table.
type scaleRow struct {
	routes     int
	others     float64            // load average before: what else runs on the host
	loads      []scaleLoad        // fastest first
	peak, rest map[string]float64 // MB, during the first load and after it
	change     []time.Duration
	peer       time.Duration   // until the server sends no more packets to it
	asbr       []time.Duration // the same, of each ASBR that was killed
	withdrawn  time.Duration
	bfdDown    int
	border     []time.Duration // loads of the border router alone, fastest first
	// frrBorder are the loads of FRR's border router alone, frr is that of its chain.
	frrBorder []time.Duration
	frr       time.Duration
	frrCPU    map[string]time.Duration // of the load of the chain
	frrMemory float64                  // of the border router, alone
}

// scaleLoad is one load of a table through the whole chain.
type scaleLoad struct {
	took  time.Duration
	chain time.Duration // until the border router has all routes too
	cpu   map[string]time.Duration
}

// middle returns the middle element of a sorted list.
func middle[T any](sorted []T) T { return sorted[len(sorted)/2] }

// scaleLoads is how often a table is loaded through the chain. aloneLoads is how often the border
// router loads it alone: once if it takes long.
const scaleLoads = 3

func aloneLoads(n int) int {
	if n > 100_000 {
		return 1
	}
	return 3
}

// TestScale loads tables through the whole chain and writes docs/performance.md. It takes minutes
// and runs only with TABANE_ROUTES, the sizes of the tables: make bench-routes.
func TestScale(t *testing.T) {
	sizes := os.Getenv("TABANE_ROUTES")
	if sizes == "" {
		t.Skip("TABANE_ROUTES is not set: see make bench-routes")
	}
	programs.Need(t, "vtysh")
	var rows []scaleRow
	for size := range strings.SplitSeq(sizes, ",") {
		n, err := strconv.Atoi(size)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(size, func(t *testing.T) { rows = append(rows, measureScale(t, n)) })
	}
	if !t.Failed() {
		if err := os.WriteFile(performancePage, []byte(performance(rows)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func measureScale(t *testing.T, n int) (row scaleRow) {
	row = scaleRow{routes: n, others: loadAverage(t), peak: map[string]float64{}, rest: map[string]float64{}}
	file := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(file, []byte(scaleScenario), 0o600); err != nil {
		t.Fatal(err)
	}
	l := up(t, file, "server.edge.log", "asbr.asbr.log", "reflector.reflector.log", "transit-a.router.log", "transit-b.router.log")
	pids := map[string]int{
		"asbr": l.process("asbr", "asbr").PID, "reflector": l.process("reflector", "reflector").PID, "edge": l.process("server", "edge").PID,
	}
	transit := l.process("transit-a", "router").PID
	server := pids["edge"]
	const within = 5 * time.Minute
	l.eventually("all sessions are up", 20*time.Second, func() (bool, string) {
		return routesOf(t, server) > 10, fmt.Sprint(routesOf(t, server), " routes")
	})
	var logs []string // of the sessions with BFD
	for _, log := range []string{"asbr.asbr.log", "reflector.reflector.log", "transit-a.router.log"} {
		logs = append(logs, filepath.Join("/run/tabane/lab", l.name, log))
	}
	// load loads the table, once the routes without it have settled.
	load := func() {
		before, atBorder, start := l.settled(server, 2), routesOf(t, pids["asbr"]), time.Now()
		cpu, down := map[string]time.Duration{}, logged(t, logs, bfdLost)
		for name, pid := range pids {
			cpu[name] = cpuOf(t, pid)
		}
		// Each prefix is an EPE Route and a best path.
		took := l.until(server, transit, "transit-a", withTable(n), within, func(now int) bool { return now >= before+2*n })
		for name, pid := range pids {
			cpu[name] = cpuOf(t, pid) - cpu[name]
			row.peak[name] = max(row.peak[name], memoryOf(t, pid, "VmHWM"))
		}
		row.bfdDown += logged(t, logs, bfdLost) - down
		chain := l.wait(pids["asbr"], start, within, func(now int) bool { return now >= atBorder+2*n })
		row.loads = append(row.loads, scaleLoad{took, chain, cpu})
		t.Logf("load %s, at the border router %s, cpu %v, peak %v, %d BFD sessions lost", took, chain, cpu, row.peak, row.bfdDown)
	}
	// killed kills the ASBR and starts it again without a table. The first change in the server's
	// kernel is the route that discards packets to its SIDs.
	killed := func() {
		full, start := routesOf(t, server), time.Now()
		if err := syscall.Kill(pids["asbr"], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		off := l.wait(server, start, within, func(now int) bool { return now != full })
		row.asbr = append(row.asbr, off)
		t.Logf("dead ASBR off after %s", off)
		l.wait(server, time.Now(), within, func(now int) bool { return now <= full-2*n })
	}
	load()
	time.Sleep(15 * time.Second)
	for name, pid := range pids {
		row.rest[name] = memoryOf(t, pid, "VmRSS")
	}
	t.Logf("at rest %v", row.rest)

	other := l.process("transit-b", "router").PID
	networks := []string{"2c0f:fffe::/32"}
	for i := range 10 {
		loaded := routesOf(t, server)
		networks = append(networks, fmt.Sprintf("2c0f:fffd:%x::/48", i))
		row.change = append(row.change, l.until(server, other, "transit-b", func(c map[string]any) { c["networks"] = networks },
			10*time.Second, func(now int) bool { return now >= loaded+2 }))
		time.Sleep(200 * time.Millisecond)
	}
	slices.Sort(row.change)
	t.Logf("changes %v", row.change)

	// The peer with the table closes its session. The first change in the server's kernel is the
	// route that discards packets to its SID.
	full, start := routesOf(t, server), time.Now()
	if err := syscall.Kill(transit, syscall.SIGTERM); err != nil { // which takes a while to end
		t.Fatal(err)
	}
	row.peer = l.wait(server, start, within, func(now int) bool { return now != full })
	row.withdrawn = l.wait(server, start, within, func(now int) bool { return now <= full-2*n })
	t.Logf("dead peer off after %s, all withdrawn after %s", row.peer, row.withdrawn)
	l.gone(transit, within)

	// Two more loads, at the end of each of which the ASBR is killed.
	l.rewrite("transit-a", withTable(0))
	transit = l.start("transit-a", "router").Process.Pid
	time.Sleep(2 * time.Second)
	// again starts the ASBR without the routes of the one that was killed, which the first instance
	// deletes.
	again := func() *exec.Cmd {
		first := l.start("asbr", "asbr")
		time.Sleep(time.Second)
		l.stop(first, within)
		second := l.start("asbr", "asbr")
		time.Sleep(2 * time.Second)
		return second
	}
	var daemon *exec.Cmd
	for range scaleLoads - 1 {
		load()
		time.Sleep(2 * time.Second)
		killed()
		if daemon == nil {
			l.gone(pids["asbr"], within)
		} else {
			_ = daemon.Wait()
		}
		l.until(pids["edge"], transit, "transit-a", withTable(0), within, func(int) bool { return true })
		daemon = again()
		pids["asbr"] = daemon.Process.Pid
	}
	slices.SortFunc(row.loads, func(a, b scaleLoad) int { return cmp.Compare(a.took, b.took) })
	slices.Sort(row.asbr)

	// What follows is measured alone. A border router without a reflector first.
	l.end("server", "edge", syscall.SIGTERM)
	l.end("reflector", "reflector", syscall.SIGTERM)
	border := daemon.Process.Pid
	before := l.settled(border, 3)
	if before > n {
		t.Fatalf("%d routes before the load", before)
	}
	for range aloneLoads(n) {
		row.border = append(row.border, l.until(border, transit, "transit-a", withTable(n), within, func(now int) bool { return now >= before+2*n }))
		l.until(border, transit, "transit-a", withTable(0), within, func(now int) bool { return now <= before })
	}
	slices.Sort(row.border)
	t.Logf("border router alone: loads %s", row.border)
	l.stop(daemon, within)

	frr := l.startFRR("frr-border")
	before = l.settled(frr["zebra"], 3)
	for range aloneLoads(n) {
		row.frrBorder = append(row.frrBorder, l.until(frr["zebra"], transit, "transit-a", withTable(n), within, func(now int) bool { return now >= before+n }))
		if row.frrMemory == 0 {
			row.frrMemory = memoryOf(t, frr["zebra"], "VmHWM") + memoryOf(t, frr["bgpd"], "VmHWM")
		}
		l.until(frr["zebra"], transit, "transit-a", withTable(0), within, func(now int) bool { return now <= before })
	}
	slices.Sort(row.frrBorder)
	t.Logf("FRR alone: loads %s, %.0f MB", row.frrBorder, row.frrMemory)
	nodes := map[string]map[string]int{"border": frr, "reflector": l.startFRR("frr-reflector", "--no_kernel"), "server": l.startFRR("frr-server")}
	zebra := nodes["server"]["zebra"]
	before = l.settled(zebra, 3)
	row.frrCPU = map[string]time.Duration{}
	for node, pids := range nodes {
		row.frrCPU[node] = -cpuOf(t, pids["bgpd"]) - cpuOf(t, pids["zebra"])
	}
	row.frr = l.until(zebra, transit, "transit-a", withTable(n), within, func(now int) bool { return now >= before+n })
	for node, pids := range nodes {
		row.frrCPU[node] += cpuOf(t, pids["bgpd"]) + cpuOf(t, pids["zebra"])
	}
	t.Logf("FRR, chain: load %s, cpu %v", row.frr, row.frrCPU)
	return row
}

// withTable changes a router's configuration so that it has a generated table of n prefixes, or
// none.
func withTable(n int) func(map[string]any) {
	return func(c map[string]any) {
		if n == 0 {
			delete(c, "generate")
		} else {
			c["generate"] = map[string]any{"ipv6": n, "seed": 1}
		}
	}
}

// stop ends a daemon that start started.
func (l *lab) stop(daemon *exec.Cmd, within time.Duration) {
	l.t.Helper()
	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		l.t.Fatal(err)
	}
	ends := time.AfterFunc(within, func() { _ = daemon.Process.Kill() })
	if err := daemon.Wait(); err != nil || !ends.Stop() {
		l.t.Fatalf("it does not stop within %s: %v", within, err)
	}
}

// gone waits until a process has ended.
func (l *lab) gone(pid int, within time.Duration) {
	l.t.Helper()
	l.eventually("it ends", within, func() (bool, string) {
		stat, gone := ended(pid)
		return gone, stat
	})
}

// settled returns the number of routes once it has not changed for some seconds.
func (l *lab) settled(pid, seconds int) int {
	l.t.Helper()
	last, same := -1, 0
	for same < seconds {
		time.Sleep(time.Second)
		now := routesOf(l.t, pid)
		if same++; now != last {
			last, same = now, 0
		}
	}
	return last
}

// rewrite changes a router's file.
func (l *lab) rewrite(node string, change func(map[string]any)) {
	l.t.Helper()
	file := filepath.Join("/run/tabane/lab", l.name, node+".yaml")
	b, err := os.ReadFile(file)
	if err != nil {
		l.t.Fatal(err)
	}
	var config map[string]map[string]any
	if err := json.Unmarshal(b, &config); err != nil {
		l.t.Fatal(err)
	}
	change(config["router"])
	if b, err = json.Marshal(config); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// until changes a router's file, has the router load it, and returns the time until the number of
// routes in the kernel of another daemon's namespace is as wanted.
func (l *lab) until(watched, router int, node string, change func(map[string]any), within time.Duration, done func(int) bool) time.Duration {
	l.t.Helper()
	l.rewrite(node, change)
	start := time.Now()
	if err := syscall.Kill(router, syscall.SIGHUP); err != nil {
		l.t.Fatal(err)
	}
	return l.wait(watched, start, within, done)
}

// wait returns the time from start until the number of routes is as wanted, to a fraction of a
// millisecond in the first second.
func (l *lab) wait(pid int, start time.Time, within time.Duration, done func(int) bool) time.Duration {
	l.t.Helper()
	for {
		now := routesOf(l.t, pid)
		took := time.Since(start)
		switch {
		case done(now):
			return took
		case took > within:
			l.t.Fatalf("%d routes after %s", now, took)
		}
		time.Sleep(min(max(200*time.Microsecond, took/500), 20*time.Millisecond))
	}
}

// bfdLost is what a daemon logs of a session that ends because of BFD.
const bfdLost = `reason="bfd down"`

// logged counts a text in some logs.
func logged(t *testing.T, files []string, text string) (n int) {
	t.Helper()
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n += strings.Count(string(b), text)
	}
	return n
}

// startFRR starts FRR on a node and returns the processes of zebra and bgpd.
func (l *lab) startFRR(node string, bgpd ...string) map[string]int {
	l.t.Helper()
	dir := filepath.Join("/run/tabane/lab", l.name, node+".frr")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "frr.conf"), []byte(frrScale[node]), 0o644); err != nil {
		l.t.Fatal(err)
	}
	pids := map[string]int{}
	for _, name := range []string{"zebra", "bgpd"} {
		args := []string{
			"/usr/lib/frr/" + name, "--config_file", dir + "/frr.conf", "--pid_file", dir + "/" + name + ".pid",
			"--socket", dir + "/zserv.api", "--vty_socket", dir, "--vty_port", "0", "--log", "file:" + dir + "/" + name + ".log",
		}
		if name == "bgpd" {
			args = append(append(args, "--skip_runas"), bgpd...)
		} else {
			args = append(args, "--user", "root", "--group", "frrvty")
		}
		cmd := l.command(node, args...)
		if err := cmd.Start(); err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() })
		time.Sleep(2 * time.Second)
		b, err := os.ReadFile(dir + "/" + name + ".pid")
		if err != nil {
			l.t.Fatal(err)
		}
		if pids[name], err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
			l.t.Fatal(err)
		}
	}
	return pids
}

// routesOf returns the number of IPv6 routes in the kernel, in the namespace of a process.
func routesOf(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/rt6_stats", pid))
	if err != nil {
		t.Fatal(err)
	}
	// Nodes, route nodes, allocated routes, routes, ... (rt6_stats_seq_show in the kernel).
	n, err := strconv.ParseInt(strings.Fields(string(b))[3], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// memoryOf returns a field of /proc/PID/status in MB.
func memoryOf(t *testing.T, pid int, field string) float64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); f[0] == field+":" {
			kb, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb / 1000 * 1.024
		}
	}
	t.Fatalf("no %s in %s", field, b)
	return 0
}

// loadAverage returns that of the last minute.
func loadAverage(t testing.TB) float64 {
	t.Helper()
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	load, err := strconv.ParseFloat(strings.Fields(string(b))[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	return load
}

// cpuOf returns the CPU time of a process.
func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var ticks int
	for _, field := range f[11:13] { // utime and stime, proc(5)
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

const performancePage = "../../docs/performance.md"

// performanceGoal is what a table of a size should not exceed.
type performanceGoal struct {
	measure string
	row     func(scaleRow) string
	goals   map[int]string
}

func seconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.3g ms", float64(d.Microseconds())/1000)
}

func megabytes(of func(scaleRow) map[string]float64, daemon string) func(scaleRow) string {
	return func(r scaleRow) string { return fmt.Sprintf("%.0f MB", of(r)[daemon]) }
}

func peak(r scaleRow) map[string]float64 { return r.peak }
func rest(r scaleRow) map[string]float64 { return r.rest }

var performanceGoals = []performanceGoal{
	{"load average before", func(r scaleRow) string { return fmt.Sprintf("%.1f", r.others) }, nil},
	{"load at the server, median of three", func(r scaleRow) string { return seconds(middle(r.loads).took) }, map[int]string{100_000: "5 s", 1_000_000: "20 s"}},
	{"fastest of them", func(r scaleRow) string { return seconds(r.loads[0].took) }, nil},
	{"slowest of them", func(r scaleRow) string { return seconds(r.loads[len(r.loads)-1].took) }, nil},
	{"at the border router and the server", func(r scaleRow) string { m := middle(r.loads); return seconds(max(m.took, m.chain)) }, nil},
	{"same chain, FRR", func(r scaleRow) string { return seconds(r.frr) }, nil},
	{"border router alone, median load", func(r scaleRow) string { return seconds(middle(r.border)) }, nil},
	{"border router alone, fastest", func(r scaleRow) string { return seconds(r.border[0]) }, nil},
	{"border router alone, slowest", func(r scaleRow) string { return seconds(r.border[len(r.border)-1]) }, nil},
	{"FRR's border router alone, median load", func(r scaleRow) string { return seconds(middle(r.frrBorder)) }, nil},
	{"FRR's border router alone, fastest", func(r scaleRow) string { return seconds(r.frrBorder[0]) }, nil},
	{"FRR's border router alone, slowest", func(r scaleRow) string { return seconds(r.frrBorder[len(r.frrBorder)-1]) }, nil},
	{"CPU of asbr", func(r scaleRow) string { return seconds(middle(r.loads).cpu["asbr"]) }, nil},
	{"CPU of reflector", func(r scaleRow) string { return seconds(middle(r.loads).cpu["reflector"]) }, nil},
	{"CPU of edge", func(r scaleRow) string { return seconds(middle(r.loads).cpu["edge"]) }, nil},
	{"CPU of FRR, border router", func(r scaleRow) string { return seconds(r.frrCPU["border"]) }, nil},
	{"CPU of FRR, reflector", func(r scaleRow) string { return seconds(r.frrCPU["reflector"]) }, nil},
	{"CPU of FRR, server", func(r scaleRow) string { return seconds(r.frrCPU["server"]) }, nil},
	{"asbr, peak", megabytes(peak, "asbr"), map[int]string{100_000: "250 MB", 1_000_000: "2000 MB"}},
	{"reflector, peak", megabytes(peak, "reflector"), map[int]string{100_000: "200 MB", 1_000_000: "2000 MB"}},
	{"edge, peak", megabytes(peak, "edge"), map[int]string{100_000: "250 MB", 1_000_000: "1500 MB"}},
	{"asbr, idle", megabytes(rest, "asbr"), nil},
	{"reflector, idle", megabytes(rest, "reflector"), nil},
	{"edge, idle", megabytes(rest, "edge"), nil},
	{"FRR, border router, peak", func(r scaleRow) string { return fmt.Sprintf("%.0f MB", r.frrMemory) }, nil},
	{"one change, median", func(r scaleRow) string { return milliseconds(r.change[len(r.change)/2]) }, map[int]string{1_000_000: "5 ms"}},
	{"one change, worst of 10", func(r scaleRow) string { return milliseconds(r.change[len(r.change)-1]) }, nil},
	{"dead peer off", func(r scaleRow) string { return milliseconds(r.peer) }, map[int]string{1_000_000: "100 ms"}},
	{"all its routes gone", func(r scaleRow) string { return seconds(r.withdrawn) }, map[int]string{100_000: "3 s"}},
	{"dead ASBR off, slower of two", func(r scaleRow) string { return milliseconds(r.asbr[len(r.asbr)-1]) }, map[int]string{1_000_000: "50 ms"}},
	{"faster of two", func(r scaleRow) string { return milliseconds(r.asbr[0]) }, nil},
	{"BFD sessions lost", func(r scaleRow) string { return strconv.Itoa(r.bfdDown) }, map[int]string{10_000: "0", 100_000: "0", 1_000_000: "0"}},
}

// performance writes the page.
func performance(rows []scaleRow) string {
	slices.SortFunc(rows, func(a, b scaleRow) int { return cmp.Compare(a.routes, b.routes) })
	var b strings.Builder
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	fmt.Fprintf(&b, `# Performance

`+"`make bench-routes`"+` writes this page. A transit provider advertises a generated IPv6 table (router.generate: realistic prefix
lengths, one AS path for six prefixes) to a border router; its routes reach a server through a route reflector. All of them share
one machine: Linux %s, %d CPUs.

Each prefix is two routes at the border router and at the server: a best path in the main table and an EPE Route in the peer's
table. "Load" is the time from the reload of the transit's configuration until the server's kernel has all of them; best paths
reach the server before the border router has installed its own, which another row includes. The table is loaded three times. The
border router alone, without reflector and server, has the table when both routes of each prefix are in its kernel; it loads it three
times up to 100,000 prefixes, and once a million, as FRR does.

FRR (Debian's, bgpd and zebra) loads the same table from the same transit in the same run, when nothing of tabane runs any more: its border
router alone, and then the chain of border router (next-hop-self), route reflector (bgpd --no_kernel) and server. FRR carries plain
IPv6 unicast, so that each prefix is one route in all places where tabane has two.

A change is one more prefix of another peer, from the reload of that peer's configuration until the server's kernel has the routes. A dead peer
closes its session, a dead ASBR is killed 2 s after the second and third load, while it still installs routes: "off" is when the server
sends it no more packets. BFD runs with 50 ms x 3 on the sessions of the border router throughout, and those lost in the three loads are
counted. One run: with a load average before it of much more than 0 other programs took a part of the CPUs from all of them, and the times
are too long. The goal for a size, where there is one, is in parentheses.

`, strings.TrimSpace(string(kernel)), runtime.NumCPU())
	b.WriteString("| |")
	for _, r := range rows {
		fmt.Fprintf(&b, " %s prefixes |", thousands(r.routes))
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(rows)) + "\n")
	for _, g := range performanceGoals {
		b.WriteString("| " + g.measure + " |")
		for _, r := range rows {
			b.WriteString(" " + g.row(r))
			if goal := g.goals[r.routes]; goal != "" {
				b.WriteString(" (" + goal + ")")
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// TestPerformancePage: the page that TestScale writes, and the one in the tree if it was measured,
// have a number in every cell.
func TestPerformancePage(t *testing.T) {
	var rows []scaleRow
	for _, n := range []int{1_000_000, 10_000, 100_000} {
		times := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}
		rows = append(rows, scaleRow{
			routes: n, loads: []scaleLoad{{took: time.Second}}, change: make([]time.Duration, 10), peer: 2500 * time.Microsecond,
			asbr: times, border: times, frrBorder: times,
		})
	}
	checkPerformance(t, performance(rows))
	b, err := os.ReadFile(performancePage)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	checkPerformance(t, string(b))
}

func checkPerformance(t *testing.T, page string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(page), "\n")
	header := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "| |") })
	if header < 0 || !slices.Equal(cells(lines[header]), []string{"", "10,000 prefixes", "100,000 prefixes", "1,000,000 prefixes"}) {
		t.Fatalf("the page has no table of the three sizes; write it with make bench-routes")
	}
	rows := lines[header+2:]
	if len(rows) != len(performanceGoals) {
		t.Fatalf("%d rows, want %d", len(rows), len(performanceGoals))
	}
	for i, g := range performanceGoals {
		row := cells(rows[i])
		if row[0] != g.measure || len(row) != 4 {
			t.Errorf("row %q, want %q with three numbers", rows[i], g.measure)
			continue
		}
		for at, n := range []int{10_000, 100_000, 1_000_000} {
			value, goal, _ := strings.Cut(row[1+at], " (")
			number, unit, _ := strings.Cut(value, " ")
			v, err := strconv.ParseFloat(number, 64)
			if err != nil || v < 0 || math.IsInf(v, 0) || strings.TrimSuffix(goal, ")") != g.goals[n] || g.goals[n] != "" && !strings.HasSuffix(g.goals[n], unit) {
				t.Errorf("%s with %d prefixes: %q", g.measure, n, row[1+at])
			}
		}
	}
}

func cells(line string) (all []string) {
	for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
		all = append(all, strings.TrimSpace(cell))
	}
	return all
}
