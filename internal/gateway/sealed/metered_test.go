package sealed

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/gateway/udp"
)

// simulated are two gateways without devices, whose clock is that of a test, in one goroutine. Each
// line of either reaches each line of the other one, of which the first gateway has the endpoints.
type simulated struct {
	t      testing.TB
	now    time.Duration
	planes [2]*Plane
	states [2]dataplane.State
	batch  [2]*batch
	// networks are where the messages to a line are sent.
	networks [2][]*net.UDPConn
	buffer   []byte
	// busy: packets flow all the time, over the paths that carry some.
	busy bool
	// cut are lines that carry nothing: the gateway, and the number.
	cut map[[2]int]bool
	// lines are what the lines of each gateway are like, those that are missing carry any rate.
	lines    [2][]*simulatedLine
	underWay []arrival // in the order of their arrival
}

// simulatedDelay is the one-way delay between lines that are like no simulatedLine.
const simulatedDelay = 20 * time.Millisecond

// arrival is a message that is under way to a line of a gateway.
type arrival struct {
	at      time.Duration
	n, line int
	udp.Received
}

// simulate makes two gateways, which have lines with these uses.
func simulate(t testing.TB, uses [2][]dataplane.Use) *simulated {
	t.Helper()
	s := &simulated{t: t, buffer: make([]byte, 1<<16), cut: map[[2]int]bool{}}
	var keys [2]handshake.PrivateKey
	for n := range keys {
		var err error
		if keys[n], err = handshake.GenerateKey(rand.Reader); err != nil {
			t.Fatal(err)
		}
		for range uses[n] {
			c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			raw, err := c.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			// All of a train waits in it.
			_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) })
			if err != nil {
				t.Fatal(err)
			}
			s.networks[n] = append(s.networks[n], c)
		}
	}
	begin := time.Now()
	for n := range s.planes {
		p := withoutDevice(Options{}, func(f func() error) error { return f() })
		p.clock, p.wall = func() time.Duration { return s.now }, func() time.Time { return begin.Add(s.now) }
		state := dataplane.State{Key: keys[n], Policy: dataplane.Policy{{Discipline: dataplane.Discipline{Name: dataplane.Auto}}}}
		for i, u := range uses[n] {
			auto := dataplane.Rate{Estimated: true}
			state.Paths = append(state.Paths, dataplane.Path{Name: fmt.Sprintf("%c%d", 'a'+n, i), Usable: true, Up: auto, Down: auto, Use: u})
		}
		peer := dataplane.Peer{Name: "other", Public: keys[1-n].Public(), Prefixes: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", 1-n))}}
		if n == 0 {
			for i := range s.networks[1] {
				peer.Endpoints = append(peer.Endpoints, s.address(1, i))
			}
		}
		state.Peers = []dataplane.Peer{peer}
		s.planes[n], s.states[n], s.batch[n] = p, state, newBatch(p, 1<<18)
		s.apply(n)
		for _, l := range p.lines {
			socket, err := udp.Listen(udp.Options{Local: netip.MustParseAddrPort("127.0.0.1:0")})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { socket.Close() })
			l.mtu.Store(1500)
			l.socket.Store(socket)
		}
	}
	return s
}

// address returns where the messages to a line are sent.
func (s *simulated) address(n, line int) netip.AddrPort {
	return s.networks[n][line].LocalAddr().(*net.UDPAddr).AddrPort()
}

// apply applies the state of a gateway.
func (s *simulated) apply(n int) {
	s.t.Helper()
	if err := s.planes[n].Apply(s.states[n]); err != nil {
		s.t.Fatal(err)
	}
}

func (s *simulated) peer(n int) *peer { return s.planes[n].routing.Load().peers[0] }

// run lets time pass.
func (s *simulated) run(length time.Duration) {
	s.t.Helper()
	for end := s.now + length; s.now < end; {
		next := end
		for n := range s.planes {
			r := s.peer(n)
			if s.busy {
				r.active.Store(int64(s.now))
			}
			next = min(next, r.tick(s.now, s.batch[n]))
			s.batch[n].flush()
			s.send(n)
		}
		if len(s.underWay) > 0 && s.underWay[0].at <= next {
			s.now = max(s.now, s.underWay[0].at)
			s.receive()
		} else {
			s.now = max(next, s.now+granularity)
		}
	}
}

// send puts what a gateway has sent under way.
func (s *simulated) send(n int) {
	for i := range s.networks[1-n] {
		for {
			data, sender, ok := s.read(1-n, i)
			if !ok {
				break
			}
			for j, l := range s.planes[n].lines {
				if l.socket.Load().Local() != sender || s.cut[[2]int{1 - n, i}] || s.cut[[2]int{n, j}] {
					continue
				}
				at, arrives := s.now+simulatedDelay, true
				if s.lines[n] != nil {
					if at, arrives = s.lines[n][j].up.carry(s.now, len(data)+inet.UDP4Len); arrives {
						at, arrives = s.lines[1-n][i].down.carry(at, len(data)+inet.UDP4Len)
					}
				}
				if arrives {
					before, _ := slices.BinarySearchFunc(s.underWay, at+1, func(a arrival, at time.Duration) int { return cmp.Compare(a.at, at) })
					s.underWay = slices.Insert(s.underWay, before, arrival{at, 1 - n, i, udp.Received{Data: data, Size: len(data), From: s.address(n, j)}})
				}
			}
		}
	}
}

// receive has gateways receive what has arrived.
func (s *simulated) receive() {
	for len(s.underWay) > 0 && s.underWay[0].at <= s.now {
		a := s.underWay[0]
		s.underWay = s.underWay[1:]
		p := s.planes[a.n]
		b := s.batch[a.n]
		var opened []opened
		opened = p.open(p.lines[a.line], &a.Received, &buffer{data: a.Data}, opened, b)
		for j := range opened {
			opened[j].keys.peer.handlePackets(b, opened[j:j+1], s.now)
		}
		for h, found := p.exchanges.pop(); found; h, found = p.exchanges.pop() {
			p.exchange(h)
		}
		b.flush()
		s.send(a.n)
	}
}

// read reads a message to a line, if one is there.
func (s *simulated) read(n, line int) (data []byte, sender netip.AddrPort, ok bool) {
	raw, err := s.networks[n][line].SyscallConn()
	if err != nil {
		s.t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		length, from, err := unix.Recvfrom(int(fd), s.buffer, unix.MSG_DONTWAIT)
		switch a, v4 := from.(*unix.SockaddrInet4); {
		case errors.Is(err, unix.EAGAIN):
		case err != nil || !v4:
			s.t.Fatal(from, err)
		default:
			data, sender, ok = bytes.Clone(s.buffer[:length]), netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), true
		}
	})
	return data, sender, ok
}

// carried returns the bytes of IP packets that lines of a gateway carried in both directions.
func (s *simulated) carried(n, line int) uint64 { return s.planes[n].lines[line].carried.Load() }

// path returns what a gateway has of the path of a line of one of them, nothing if it has none.
func (s *simulated) path(at, n, line int) dataplane.LinkStatus {
	name := s.states[n].Paths[line].Name
	for _, l := range s.planes[at].Status().Peers[0].Links {
		if at == n && l.Line == name || at != n && l.Meets == name {
			return l
		}
	}
	return dataplane.LinkStatus{}
}

// beside are two lines of which the second one is used so.
func beside(u dataplane.Use) []dataplane.Use { return []dataplane.Use{{}, u} }

// TestBytesPerDay compares what docs/gateway-measured.md says of the bytes per day of a line that
// carries no packets with what it sends and receives in simulated time.
func TestBytesPerDay(t *testing.T) {
	text, err := os.ReadFile("../../../docs/gateway-measured.md")
	if err != nil {
		t.Fatal(err)
	}
	backup := dataplane.Use{Backup: true}
	for _, tt := range []struct {
		row    string
		uses   [2][]dataplane.Use
		n      int // whose second line it is
		length time.Duration
		most   float64 // in MB
		as     func(*simulated)
	}{
		{"an ordinary line, no traffic", [2][]dataplane.Use{beside(dataplane.Use{}), {{}}}, 0, 5 * time.Minute, 150, nil},
		{"an ordinary line, 5 packets/s on others", [2][]dataplane.Use{beside(dataplane.Use{}), {{}}}, 0, 10 * time.Second, 2500, func(s *simulated) { s.busy = true }},
		{"a backup, no traffic", [2][]dataplane.Use{beside(backup), {{}}}, 0, time.Hour, 2, calm},
		{"a backup, 5 packets/s on others", [2][]dataplane.Use{beside(backup), {{}}}, 0, time.Hour, 10, func(s *simulated) { calm(s); s.busy = true }},
		{"a backup of the peer, 5 packets/s on others", [2][]dataplane.Use{{{}}, beside(backup)}, 1, time.Hour, 10, func(s *simulated) { calm(s); s.busy = true }},
		{"a backup with `probes: 5m`, 5 packets/s on others", [2][]dataplane.Use{beside(dataplane.Use{Backup: true, Interval: 5 * time.Minute}), {{}}}, 0, time.Hour, 2, func(s *simulated) { calm(s); s.busy = true }},
		{"a backup that reaches nobody, 5 packets/s on others", [2][]dataplane.Use{beside(backup), {{}}}, 0, time.Hour, 2, func(s *simulated) { calm(s); s.busy, s.cut[[2]int{0, 1}] = true, true }},
		{"a backup while the peer does not run", [2][]dataplane.Use{beside(backup), {{}}}, 0, 5 * time.Minute, 2, func(s *simulated) { calm(s); s.cut[[2]int{1, 0}] = true }},
		{"a line whose quota is used up", [2][]dataplane.Use{beside(dataplane.Use{Spent: true}), {{}}}, 0, time.Hour, 2, calm},
	} {
		s := simulate(t, tt.uses)
		s.run(time.Minute)
		if tt.as != nil {
			tt.as(s)
			s.run(2 * time.Minute)
		}
		before := s.carried(tt.n, 1)
		s.run(tt.length)
		got := float64(s.carried(tt.n, 1)-before) * float64(24*time.Hour) / float64(tt.length) / 1e6
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(tt.row) + ` \| ([0-9.]+) `).FindSubmatch(text)
		if row == nil {
			t.Errorf("docs/gateway-measured.md has no row %q, with %.2f MB", tt.row, got)
			continue
		}
		want, _ := strconv.ParseFloat(string(row[1]), 64)
		if got > want*1.1 || got < want*0.8 || got > tt.most {
			t.Errorf("%s: %.2f MB a day, documented %v, at most %v", tt.row, got, want, tt.most)
		}
	}
}

// calm has the first line probed seldom, which saves a test time: its bytes are not counted.
func calm(s *simulated) {
	for n := range s.states {
		s.states[n].Probes = dataplane.Probes{Idle: time.Minute, Busy: time.Minute}
		s.apply(n)
	}
}

// TestBackupFoundDead: a backup that dies is found dead by both gateways within its interval,
// whenever it dies, although nothing is sent over it; and it is up again within another one.
func TestBackupFoundDead(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{tunnel.MinInterval, dataplane.DefaultInterval, 10 * time.Minute} {
		for n, uses := range [][2][]dataplane.Use{
			{beside(dataplane.Use{Backup: true, Interval: interval}), {{}}},
			{{{}}, beside(dataplane.Use{Backup: true, Interval: interval})},
		} {
			s := simulate(t, uses)
			s.run(time.Minute)
			calm(s)
			s.run(interval)
			for part := range time.Duration(4) {
				s.run(interval * part / 5)
				for end := range 2 {
					if l := s.path(end, n, 1); l.State != "up" || l.Resting == "" {
						t.Fatalf("interval %v, gateway %d: %+v", interval, end, l)
					}
				}
				s.cut[[2]int{n, 1}] = true
				s.run(interval)
				for end := range 2 {
					if l := s.path(end, n, 1); l.State == "up" { // a line of the peer has no path any more
						t.Errorf("interval %v, gateway %d: the backup is up", interval, end)
					}
				}
				delete(s.cut, [2]int{n, 1})
				s.run(interval + 2*time.Second + scoutSeldom)
			}
		}
	}
}

// TestBackupReturnsAlone: a backup that is the first line to return after none answered is used at
// once, whatever its interval: while there is a session, and after that has ended. One whose quota
// is used up is not asked more often.
func TestBackupReturnsAlone(t *testing.T) {
	t.Parallel()
	for _, silent := range []time.Duration{time.Minute, 5 * time.Minute} { // a session ends after 3
		for n := range 2 {
			for _, spent := range []bool{false, true} {
				metered := dataplane.Use{Backup: true, Spent: spent, Interval: time.Hour}
				uses := [2][]dataplane.Use{{{}}, {{}}}
				uses[n] = beside(metered)
				s := simulate(t, uses)
				s.run(time.Minute)
				calm(s)
				s.cut[[2]int{n, 0}], s.cut[[2]int{n, 1}] = true, true
				s.run(silent)
				before := s.carried(n, 1)
				s.run(10 * time.Minute)
				if most := uint64(40_000); s.carried(n, 1)-before > most || spent && s.carried(n, 1)-before > most/2 {
					t.Errorf("gateway %d, silent %v, spent %t: %d bytes in 10 minutes", n, silent, spent, s.carried(n, 1)-before)
				}
				delete(s.cut, [2]int{n, 1})
				s.run(aloneMost + 5*time.Second)
				for end := range 2 {
					usable := slices.ContainsFunc(s.peer(end).scheduling.paths, func(p sched.Path) bool { return p.Usable })
					if usable == spent {
						t.Errorf("gateway %d, silent %v, spent %t: at %d %+v", n, silent, spent, end, s.path(end, n, 1))
					}
				}
			}
		}
	}
}

// TestSpentCarriesNothing: no packet is sent over a line whose quota is used up, also if there is
// no other one; both gateways know it, and when there is quota again it carries packets at once.
func TestSpentCarriesNothing(t *testing.T) {
	t.Parallel()
	for n, uses := range [][2][]dataplane.Use{{beside(dataplane.Use{}), {{}}}, {{{}}, beside(dataplane.Use{})}} {
		s := simulate(t, uses)
		s.run(10 * time.Second)
		usable := func(end int) (usable int) {
			r := s.peer(end)
			for i := range r.scheduling.paths {
				if r.scheduling.paths[i].Usable {
					usable++
				}
			}
			return usable
		}
		for _, spent := range []bool{true, false} {
			s.states[n].Paths[1].Use.Spent = spent
			s.states[n].Paths = append([]dataplane.Path(nil), s.states[n].Paths...)
			s.apply(n)
			s.run(time.Second)
			want := 2
			if spent {
				want = 1
			}
			for end := range 2 {
				if got := usable(end); got != want {
					t.Errorf("line of gateway %d spent: %t, gateway %d uses %d paths, want %d", n, spent, end, got, want)
				}
			}
			if spent {
				s.cut[[2]int{0, 0}] = n == 0
				s.cut[[2]int{1, 0}] = n == 1
				s.run(10 * time.Second)
				if got := usable(n); got > 1 {
					t.Errorf("line of gateway %d spent, no other one: %d paths are used", n, got)
				}
				clear(s.cut)
				s.run(10 * time.Second)
			}
		}
	}
}

// TestBackupTakesOver: a backup carries nothing while the other path works, takes over when that
// goes, whichever gateway is cut off, and is left again when it returns.
func TestBackupTakesOver(t *testing.T) {
	t.Parallel()
	for name, metered := range map[string]int{"of the gateway with endpoints": 0, "of the other gateway": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := pair(t, 2)
			all := [2]*gateway{a, b}
			all[metered].state.Paths[1].Use = dataplane.Use{Backup: true}
			a.run()
			b.run()
			a.up(2)
			b.up(2)
			streams := [2]*stream{a.stream(b, 100), b.stream(a, 100)}
			link := func(g *gateway, i int) dataplane.LinkStatus {
				for _, l := range g.plane.Status().Peers[0].Links {
					if l.Path == fmt.Sprintf("path%d", i) {
						return l
					}
				}
				return dataplane.LinkStatus{}
			}
			// carries waits until path i alone carries the packets of both gateways, and is what they
			// say is used.
			carries := func(what string, i int) {
				t.Helper()
				eventually(t, what, func() bool {
					var before [2][2]uint64
					for n, g := range all {
						before[n] = [2]uint64{link(g, i).Sent.Packets, link(g, 1-i).Sent.Packets}
					}
					time.Sleep(100 * time.Millisecond)
					for n, g := range all {
						if link(g, i).Sent.Packets-before[n][0] < 20 || link(g, 1-i).Sent.Packets-before[n][1] > 10 {
							return false
						}
						if using := g.plane.Status().Peers[0].Policies[0].Using; !slices.Equal(using, []string{fmt.Sprintf("path%d", i)}) {
							return false
						}
					}
					return true
				})
			}
			carries("the backup rests", 0)
			for n, g := range all {
				if l := link(g, 1); l.Resting == "" || !l.Use.Backup {
					t.Errorf("gateway %d: %+v", n, l)
				}
			}
			for _, cut := range []struct{ off, on func() }{
				{func() { a.lose(0); b.lose(0) }, func() { a.deliver(0); b.deliver(0) }},
				{func() { b.lose(0) }, func() { b.deliver(0) }},
			} {
				from := [2]uint32{streams[0].sent.Load(), streams[1].sent.Load()}
				cut.off()
				carries("the backup takes over", 1)
				for n, s := range streams {
					lasted, lost := s.outage(from[n])
					t.Logf("from gateway %d: %d datagrams were lost, the last after %v", n, lost, lasted)
					if lasted > recovered {
						t.Errorf("from gateway %d: packets were lost for %v", n, lasted)
					}
				}
				cut.on()
				carries("the backup is left", 0)
			}
		})
	}
}

// TestBackupForFullPaths: a backup with full carries packets while the other path cannot take all,
// and rests when less is sent.
func TestBackupForFullPaths(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{true, false} {
		a, b := pair(t, 2)
		a.auto(5 * unit.MbitPerSecond)
		b.auto(5 * unit.MbitPerSecond)
		a.state.Paths[1].Use = dataplane.Use{Backup: true, Full: full}
		a.run()
		b.run()
		a.up(2)
		b.up(2)
		rests := func() bool { return a.plane.Status().Peers[0].Links[1].Resting != "" }
		eventually(t, "the backup rests", rests)
		// 1000 datagrams of 3 kB in a second are 24 Mbit/s: too much, even if a busy machine sends
		// a third.
		s := a.stream(b, 3000)
		if full {
			eventually(t, "the backup carries packets", func() bool { return !rests() })
			s.end()
			eventually(t, "the backup rests again", rests)
			continue
		}
		eventually(t, "the path is full", func() bool { return a.plane.Status().Dropped["queue of path"] > 0 })
		if !rests() {
			t.Error("the backup carries packets")
		}
	}
}

// TestPeerWithoutUses: it is logged once that a peer does not know metered lines, and again after
// it did.
func TestPeerWithoutUses(t *testing.T) {
	metered := dataplane.Use{Backup: true, Interval: time.Minute}
	s := simulate(t, [2][]dataplane.Use{{{}, metered}, {{}}})
	s.run(5 * time.Second)
	r := s.peer(0)
	var log strings.Builder
	r.log = slog.New(slog.NewTextHandler(&log, nil))
	for i, known := range []bool{false, false, true, false} {
		log.Reset()
		r.uses.know(known)
		if warned := strings.Contains(log.String(), "path=a1"); warned != (i == 0 || i == 3) {
			t.Errorf("after message %d: %q is logged", i, log.String())
		}
	}
}

// TestFailedIsNotCarried: what was not sent does not count as carried.
func TestFailedIsNotCarried(t *testing.T) {
	s := simulate(t, [2][]dataplane.Use{{{}}, {{}}})
	l := s.planes[0].lines[0]
	l.send([]udp.Datagram{{Data: make([]byte, 1<<16), To: s.address(1, 0)}})
	if got := l.carried.Load(); got != 0 {
		t.Errorf("%d bytes carried", got)
	}
	l.send([]udp.Datagram{{Data: make([]byte, 100), To: s.address(1, 0)}})
	if got, want := l.carried.Load(), uint64(100+inet.UDP4Len); got != want {
		t.Errorf("%d bytes carried, want %d", got, want)
	}
}
