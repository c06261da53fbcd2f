package bgp

import (
	"bufio"

	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/session"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

// loader is set in the child process of BenchmarkReflector, to the number of routes.
const loader = "TABANE_TEST_BGP_LOADER"

// Addresses of the loader's two ends and of the reflector.
const (
	loaderASBR, loaderReflector, loaderServer = 1, 2, 3
	locatorText                               = "fc00:1::/32"
)

// loadRoutes returns UPDATEs with n VPN routes. As in a full table, about seven routes share their
// attributes; paths have three to six ASes.
func loadRoutes(n int) [][]byte {
	in := message.NewInterner()
	e := message.NewEncoder(message.Negotiated{Families: message.Families(VPNv6, IPv6Unicast), FourOctetAS: true, ExtendedMessage: true})
	rd, err := vpn.Parse("65000:1")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	st, err := structure.Transposed()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	service, label, err := message.NewService(sidA, st, 18)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	fields := func(origin int) message.Fields {
		path := []uint32{65001, uint32(3000 + origin%500), uint32(10000 + origin%7000), uint32(100000 + origin)}
		return message.Fields{
			NextHop: address(loaderASBR), LocalPref: 100, HasLocalPref: true, ASPath: message.MakeASPath(path[:2+origin%3]...),
			MED: uint32(origin), HasMED: true, Extended: []uint64{rd.Target()}, PrefixSID: service.PrefixSID(),
			Communities: []uint32{65001<<16 | uint32(origin%100)},
		}
	}
	var messages [][]byte
	var b []byte
	flush := func() {
		messages = append(messages, b)
		b = nil
	}
	b, _, err = e.Announce(b, in.Intern(message.Fields{NextHop: address(loaderASBR), LocalPref: 100, HasLocalPref: true}),
		[]message.NLRI{{Key: message.KeyOf(prefix(locatorText))}})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	for i, origin := 0, 0; i < n; origin++ {
		size := min(1+origin*7%13, n-i)
		nlri := make([]message.NLRI, size)
		for j := range nlri {
			nlri[j] = message.NLRI{Key: message.KeyOfVPN(rd, loadPrefix(i+j)), Label: label}
		}
		i += size
		b, _, err = e.Announce(b, in.Intern(fields(origin)), nlri)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		if len(b) > 60<<10 {
			flush()
		}
	}
	b = message.AppendEndOfRIB(message.AppendEndOfRIB(b, VPNv6), IPv6Unicast)
	flush()
	return messages
}

// loadPrefix returns prefix i; most have 48 bits.
func loadPrefix(i int) netip.Prefix {
	a := addr("2a00::").As16()
	binary.BigEndian.PutUint32(a[2:], uint32(i)<<8)
	return netip.PrefixFrom(netip.AddrFrom16(a), []int{48, 48, 48, 44, 40, 47, 46}[i%7]).Masked()
}

// end is one end of the loader.
type end struct {
	session *session.Session
	up      chan struct{}
}

func newEnd(n int, update func([]byte) error, fill func([]byte) []byte) (*end, error) {
	e := &end{up: make(chan struct{})}
	up := sync.OnceFunc(func() { close(e.up) })
	conf := session.Config{
		Remote: netip.AddrPortFrom(address(loaderReflector), DefaultPort), Local: address(n), LocalASN: 65000, RemoteASN: 65000,
		RouterID: addr(fmt.Sprintf("10.0.0.%d", n)), HoldTime: 90 * time.Second, ConnectRetry: time.Second, Log: slog.New(slog.DiscardHandler),
	}
	conf.Families, conf.ExtendedMessage = message.Families(IPv6Unicast, VPNv6), true
	var err error
	e.session, err = session.New(conf, session.Handler{
		Up: func(session.Established) { up() }, Update: update, Fill: fill,
		Refresh: func(message.Refresh) error { return nil }, Down: func(session.Reason) {},
	})
	if err != nil {
		return nil, err
	}
	return e, e.session.Start()
}

// load is the child process of BenchmarkReflector: it advertises routes as an ASBR, receives them
// as a server, and prints the time of each phase in nanoseconds since 1970.
func load(routes int) error {
	messages := loadRoutes(routes)
	runtime.GC()
	now := func(what string) { fmt.Println(what, time.Now().UnixNano()) }
	d := message.NewDecoder(message.Negotiated{Families: message.Families(VPNv6, IPv6Unicast), FourOctetAS: true, ExtendedMessage: true}, true, message.NewInterner())
	var u message.Update
	have := map[message.Key]bool{}
	change := message.KeyOf(prefix("2a00:aaaa::/32"))
	locator := message.KeyOf(prefix(locatorText))
	loaded := false
	server, err := newEnd(loaderServer, func(body []byte) error {
		if err := d.Update(body, &u); err != nil {
			return err
		}
		for _, a := range u.Announced {
			for _, r := range a.NLRI {
				switch {
				case r.Key == change:
					now("changed")
				case r.Key == locator && a.Attributes.Communities().Has(Blackhole):
					now("lost")
				default:
					have[r.Key] = true
				}
			}
		}
		for _, k := range u.Withdrawn {
			if delete(have, k); len(have) == 0 && loaded {
				now("withdrawn")
			}
		}
		if !loaded && len(have) >= routes {
			loaded = true
			now("loaded")
		}
		return nil
	}, func(b []byte) []byte { return b })
	if err != nil {
		return err
	}
	<-server.up
	asbr, err := newEnd(loaderASBR, func([]byte) error { return nil }, func(b []byte) []byte {
		if len(messages) == 0 {
			return b
		}
		b = append(b, messages[0]...)
		messages = messages[1:]
		return b
	})
	if err != nil {
		return err
	}
	<-asbr.up
	now("begun")
	_, err = io.Copy(io.Discard, os.Stdin) // ends with the parent
	return err
}

// BenchmarkReflector passes VPN routes from an ASBR through a reflector to a server. The reflector
// is in this process, so that its memory and CPU time are measured alone. Then one route is
// changed, and the ASBR is lost.
func BenchmarkReflector(b *testing.B) {
	for _, routes := range []int{100_000, 1_000_000} {
		b.Run(strconv.Itoa(routes), func(b *testing.B) {
			for range b.N {
				reflect1(b, routes)
			}
		})
	}
}

func reflect1(b *testing.B, routes int) {
	rr := newRouterWith(b, loaderReflector, 65000, func(o *Options) { o.Report = 0 })
	for n, name := range map[int]string{loaderASBR: "asbr", loaderServer: "server"} {
		conf := Neighbor{Name: name, Address: address(n), LocalAddress: address(loaderReflector), ASN: 65000,
			Families: []Family{IPv6Unicast, VPNv6}, Passive: true, ReflectorClient: true}
		if name == "asbr" {
			conf.Locators = []netip.Prefix{prefix(locatorText)}
			conf.BFD.Interval = time.Second
		}
		rr.must(rr.AddNeighbor(conf))
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), loader+"="+strconv.Itoa(routes))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	rr.must(err)
	stdout, err := cmd.StdoutPipe()
	rr.must(err)
	rr.must(cmd.Start())
	defer func() { stdin.Close(); _ = cmd.Wait(); rr.Stop() }()
	lines := bufio.NewScanner(stdout)
	line := func() (string, time.Time) {
		if !lines.Scan() {
			b.Fatal("the loader ended")
		}
		what, at, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.ParseInt(at, 10, 64)
		rr.must(err)
		return what, time.Unix(0, n)
	}
	next := func(want string) time.Time {
		for {
			if what, at := line(); what == want {
				return at
			}
		}
	}
	memory := func(what string) float64 {
		data, _ := os.ReadFile("/proc/self/status")
		_, after, _ := strings.Cut(string(data), what+":")
		n, _ := strconv.Atoi(strings.Fields(after)[0])
		return float64(n) / 1024
	}
	began, cpu := next("begun"), cpuTime()
	// Single changes during the transfer.
	med := uint32(0)
	change := func() time.Time {
		at := time.Now()
		med++
		rr.must(rr.Originate(UnicastRoute{Prefix: prefix("2a00:aaaa::/32"), NextHop: address(loaderReflector), Attributes: Attributes{MED: med, HasMED: true}}))
		return at
	}
	var delays []time.Duration
	var loaded time.Time
	for loaded.IsZero() {
		at := change()
		for what := ""; what != "changed"; {
			var seen time.Time
			if what, seen = line(); what == "loaded" {
				loaded = seen
			} else if what == "changed" {
				delays = append(delays, seen.Sub(at))
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	cpu = cpuTime() - cpu
	slices.Sort(delays)
	b.ReportMetric(float64(delays[len(delays)/2].Microseconds()), "us-change-loading")
	b.ReportMetric(float64(delays[len(delays)-1].Microseconds()), "us-change-loading-max")
	b.ReportMetric(loaded.Sub(began).Seconds(), "s-load")
	b.ReportMetric(float64(routes)/cpu.Seconds(), "routes/cpu-s")
	b.ReportMetric(memory("VmRSS"), "MB-rss")
	b.ReportMetric(memory("VmHWM"), "MB-peak")
	debug.FreeOSMemory()
	b.ReportMetric(memory("VmRSS"), "MB-freed")
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc)/float64(routes), "heap-B/route")

	const changes = 20
	var sum, worst time.Duration
	for range changes {
		at := change()
		d := next("changed").Sub(at)
		sum, worst = sum+d, max(worst, d)
	}
	b.ReportMetric(float64(sum.Microseconds())/changes, "us-change")
	b.ReportMetric(float64(worst.Microseconds()), "us-change-max")

	at := time.Now()
	rr.must(rr.Withdraw(prefix("2a00:aaaa::/32")))
	rr.bfdDown("asbr")
	b.ReportMetric(float64(next("lost").Sub(at).Microseconds()), "us-locator")
	b.ReportMetric(next("withdrawn").Sub(at).Seconds(), "s-withdraw")
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
