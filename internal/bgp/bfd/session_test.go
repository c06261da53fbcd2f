package bfd

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

// TestPacket compares with what RFC 5880 section 4.1 draws.
func TestPacket(t *testing.T) {
	p := packet{
		diag: diagNeighborDown, state: stateUp, poll: true, multiplier: 3, my: 0x01020304, your: 0x05060708,
		desiredTx: 50 * time.Millisecond, requiredRx: 60 * time.Millisecond,
	}
	wire := []byte{0x23, 0xe0, 3, 24, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0xc3, 0x50, 0, 0, 0xea, 0x60, 0, 0, 0, 0}
	if got := p.encode(); !slices.Equal(got, wire) {
		t.Errorf("got  %x\nwant %x", got, wire)
	}
	if got, err := decode(append(wire, 0xff)); err != nil || got != p {
		t.Errorf("got %+v, %v", got, err)
	}
	p.poll, p.final = false, true
	if got, err := decode(p.encode()); err != nil || got != p {
		t.Errorf("got %+v, %v", got, err)
	}
	for name, change := range map[string]func(b []byte) []byte{
		"short":            func(b []byte) []byte { return b[:23] },
		"version":          func(b []byte) []byte { b[0] = 0x43; return b },
		"length":           func(b []byte) []byte { b[3] = 25; return b },
		"short length":     func(b []byte) []byte { b[3] = 23; return b },
		"authentication":   func(b []byte) []byte { b[1] |= 4; return b },
		"multipoint":       func(b []byte) []byte { b[1] |= 1; return b },
		"multiplier":       func(b []byte) []byte { b[2] = 0; return b },
		"no discriminator": func(b []byte) []byte { clear(b[4:8]); return b },
		"up without ours":  func(b []byte) []byte { clear(b[8:12]); return b },
	} {
		if _, err := decode(change(slices.Clone(wire))); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(packet{state: stateUp, multiplier: 3, my: 1, your: 2, desiredTx: time.Second, requiredRx: time.Second}.encode())
	f.Add([]byte{0x20, 0x40, 3, 24})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decode(b)
		if err != nil {
			return
		}
		accessor.Call(t, p, p.state)
		if again, err := decode(p.encode()); err != nil || again != p {
			t.Errorf("%+v came back as %+v, %v", p, again, err)
		}
		s := newSession(Config{Interval: time.Second}, p.your|1, func() float64 { return 0.5 })
		now := time.Unix(0, 0)
		s.receive(now, p)
		s.receive(now, s.packet(now, p.poll))
		if d := s.deadline(); !d.IsZero() && d.Before(now) {
			t.Errorf("the deadline %v is in the past", d)
		}
	})
}

// wire joins two sessions in made-up time: a packet is lost when drop says so, the others take the
// given delay.
type wire struct {
	now    time.Time
	ends   [2]*session
	flying [2][]flight // to each end
	lost   [2]int      // how often each end lost the other
	drop   func(to int) bool
	delay  time.Duration
}

type flight struct {
	at time.Time
	p  packet
}

func newWire(a, b Config) *wire {
	half := func() float64 { return 0.5 }
	return &wire{
		now: time.Unix(1000, 0), ends: [2]*session{newSession(a, 1, half), newSession(b, 2, half)},
		drop: func(int) bool { return false }, delay: time.Millisecond,
	}
}

func (w *wire) send(from int, p packet) {
	to := 1 - from
	if decoded, err := decode(p.encode()); err == nil && !w.drop(to) {
		w.flying[to] = append(w.flying[to], flight{w.now.Add(w.delay), decoded})
	}
}

// run lets time pass in steps of a millisecond.
func (w *wire) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(time.Millisecond) {
		for i, s := range w.ends {
			note := func(c transition) {
				if c == wentDown {
					w.lost[i]++
				}
			}
			for len(w.flying[i]) > 0 && !w.now.Before(w.flying[i][0].at) {
				p := w.flying[i][0].p
				w.flying[i] = w.flying[i][1:]
				c, answer := s.receive(w.now, p)
				note(c)
				if answer {
					w.send(i, s.packet(w.now, p.poll))
				}
			}
			note(s.expire(w.now))
			if due := s.nextSend(); !due.IsZero() && !w.now.Before(due) {
				w.send(i, s.packet(w.now, false))
			}
		}
	}
}

func (w *wire) up() bool { return w.ends[0].state == stateUp && w.ends[1].state == stateUp }

// TestListenWithoutAddress: the error has the remedy, as it comes from another process as text.
func TestListenWithoutAddress(t *testing.T) {
	_, err := listen(netip.MustParseAddr("2001:db8:ffff::1"), func(error) {})
	if err == nil || !strings.HasSuffix(err.Error(), "no interface has this address yet; add the address to an interface first") {
		t.Errorf("error %v", err)
	}
}

func TestDetectionTimeExpires(t *testing.T) {
	w := newWire(Config{Interval: 50 * time.Millisecond}, Config{Interval: 50 * time.Millisecond, Multiplier: 5})
	w.run(1200 * time.Millisecond)
	if !w.up() || w.ends[0].polling || w.ends[1].polling {
		t.Fatalf("not up: %+v, %+v", w.ends[0], w.ends[1])
	}
	// The neighbor's multiplier counts: 5 packets of 50 ms.
	w.drop = func(to int) bool { return to == 0 }
	w.run(190 * time.Millisecond)
	if !w.up() {
		t.Error("down too early")
	}
	w.run(70 * time.Millisecond)
	if w.ends[0].state == stateUp || w.ends[0].diag != diagTimeExpired || w.lost[0] != 1 {
		t.Errorf("receiver without packets: %+v", w.ends[0])
	}
	w.run(10 * time.Millisecond)
	if w.ends[1].state == stateUp || w.ends[1].diag != diagNeighborDown || w.lost[1] != 1 {
		t.Errorf("its neighbor: %+v", w.ends[1])
	}
	w.drop = func(int) bool { return false }
	w.run(3 * time.Second)
	if !w.up() || w.lost != [2]int{1, 1} {
		t.Errorf("not up again: %+v, %+v, lost %v", w.ends[0], w.ends[1], w.lost)
	}
}

func TestSlowerIntervalIsUsed(t *testing.T) {
	w := newWire(Config{Interval: 20 * time.Millisecond}, Config{Interval: 400 * time.Millisecond})
	w.run(5 * time.Second)
	if !w.up() || w.lost != [2]int{} {
		t.Fatalf("%+v, %+v, lost %v", w.ends[0], w.ends[1], w.lost)
	}
	for i, s := range w.ends {
		if got := s.detectionTime(); got != 1200*time.Millisecond {
			t.Errorf("end %d detects after %s", i, got)
		}
	}
}

// TestFewerLossesThanMultiplierKeepTheSessionUp: fewer losses in a row than the multiplier never
// end a session.
func TestFewerLossesThanMultiplierKeepTheSessionUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mult := rapid.Uint8Range(2, 6).Draw(t, "multiplier")
		b := Config{Interval: time.Duration(rapid.IntRange(10, 200).Draw(t, "interval")) * time.Millisecond, Multiplier: mult}
		w := newWire(b, b)
		w.delay = time.Duration(rapid.IntRange(0, 5).Draw(t, "delay")) * time.Millisecond
		w.run(3 * time.Second)
		if !w.up() {
			t.Fatal("not up")
		}
		var row [2]int
		w.drop = func(to int) bool {
			// One less than the multiplier, and one interval for delay and jitter.
			if row[to] < int(mult)-2 && rapid.Bool().Draw(t, "lose") {
				row[to]++
				return true
			}
			row[to] = 0
			return false
		}
		w.run(20 * b.Interval)
		if w.lost != [2]int{} {
			t.Fatalf("lost %v", w.lost)
		}
	})
}

func TestStoppedProcessKeepsTheSessionUp(t *testing.T) {
	w := newWire(Config{Interval: 50 * time.Millisecond}, Config{Interval: 50 * time.Millisecond})
	w.run(1200 * time.Millisecond)
	w.now = w.now.Add(10 * time.Second)
	for i := range w.ends {
		w.flying[i] = nil
		w.ends[i].restartDetection(w.now)
	}
	w.run(time.Second)
	if !w.up() || w.lost != [2]int{} {
		t.Errorf("%+v, %+v, lost %v", w.ends[0], w.ends[1], w.lost)
	}
}

func TestAdminDownIsNoFailure(t *testing.T) {
	w := newWire(Config{Interval: 50 * time.Millisecond}, Config{Interval: 50 * time.Millisecond})
	w.run(1200 * time.Millisecond)
	c, _ := w.ends[1].receive(w.now, w.ends[0].disable(w.now))
	if c != adminDown || w.ends[1].state != stateDown {
		t.Errorf("change %d, state %s", c, w.ends[1].state)
	}
	if c, _ := w.ends[1].receive(w.now, w.ends[0].packet(w.now, false)); c != unchanged {
		t.Errorf("and again: change %d", c)
	}
}

func TestPacketsOfOtherSessionsAreIgnored(t *testing.T) {
	w := newWire(Config{Interval: 50 * time.Millisecond}, Config{Interval: 50 * time.Millisecond})
	w.run(1200 * time.Millisecond)
	for _, p := range []packet{
		{state: stateDown, multiplier: 3, my: 1, your: 77},
		{state: stateDown, multiplier: 3, my: 77},
		{state: stateAdminDown, multiplier: 3, my: 77},
	} {
		if c, answer := w.ends[1].receive(w.now, p); c != unchanged || answer || w.ends[1].state != stateUp {
			t.Errorf("%+v: change %d, state %s", p, c, w.ends[1].state)
		}
	}
}
