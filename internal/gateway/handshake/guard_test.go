package handshake

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

func TestLimit(t *testing.T) {
	var l Limit
	taken := func(start, length time.Duration) (n int) {
		for now := start; now < start+length; now += time.Millisecond {
			if l.Take(now, 10, 4) {
				n++
			}
		}
		return n
	}
	for _, tt := range []struct {
		start, length time.Duration
		want          int
	}{{0, time.Millisecond, 1}, {time.Millisecond, 10 * time.Millisecond, 3}, {100 * time.Millisecond, time.Second, 10}, {time.Hour, 2 * time.Second, 23}} {
		if n := taken(tt.start, tt.length); n != tt.want {
			t.Errorf("%d taken in %v from %v on, want %d", n, tt.length, tt.start, tt.want)
		}
	}
}

func TestSender(t *testing.T) {
	for a, want := range map[string]string{
		"192.0.2.1": "192.0.2.1/32", "::ffff:192.0.2.1": "192.0.2.1/32", "2001:db8:1:2:3::4": "2001:db8:1:2::/64", "fe80::1%eth0": "fe80::/64",
	} {
		if got := Sender(netip.MustParseAddr(a)); got.String() != want {
			t.Errorf("%s counts for %v, want %s", a, got, want)
		}
	}
	if got := Sender(netip.Addr{}); got.IsValid() {
		t.Errorf("no address counts for %v", got)
	}
}

// Whatever a stranger who knows the public key sends, with whatever sources, the gateway exchanges
// keys a bounded number of times, memory is bounded, and a gateway that proves its address is
// admitted at once.
func TestGuardUnderFloods(t *testing.T) {
	const rate, seconds = 5000, 4
	for name, source := range map[string]func(i int) netip.AddrPort{
		"many sources": func(i int) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 1)
		},
		"many of IPv6": func(i int) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 1, byte(i), byte(i >> 8), byte(i >> 16)}), 1)
		},
		"the address of a peer": func(int) netip.AddrPort { return from },
		"ports of one address":  func(i int) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("198.51.100.1"), uint16(i)) },
	} {
		for _, proves := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", proved ", proves), func(t *testing.T) {
				a, b := pair(t)
				i, message := begin(t, a, Peer{Public: b.key.Public()})
				stranger, flood := begin(t, &side{newKey(t, 5), nil}, Peer{Public: b.key.Public()})
				admitted, senders := 0, map[netip.Prefix]bool{}
				for n := range rate * seconds {
					now := time.Duration(n) * time.Second / rate
					s := source(n)
					senders[Sender(s.Addr())] = true
					v, reply, err := b.guard.Judge(flood, s, false, now)
					if err != nil {
						t.Fatal(err)
					}
					if v == Unproven && proves { // the sender receives there
						c, err := stranger.Cookie(reply, now)
						if err != nil {
							t.Fatal(err)
						}
						v, _, _ = b.guard.Judge(c.Stamp(flood, now), s, false, now)
					}
					if v == Admitted {
						admitted++
					}
					if n%rate != rate/2 {
						continue
					}
					if name == "the address of a peer" && proves {
						continue // it is the peer
					}
					v, reply, _ = b.guard.Judge(message, from, false, now)
					if v == Unproven {
						c, err := i.Cookie(reply, now)
						if err != nil {
							t.Fatal(err)
						}
						v, _, _ = b.guard.Judge(c.Stamp(message, now), from, false, now)
					}
					if v != Admitted {
						t.Errorf("the peer has verdict %d", v)
					}
				}
				most := freeBurst + freeRate*seconds
				if proves {
					most += len(senders) * min(provenBurst+provenRate*seconds, rate*seconds/len(senders))
				}
				if admitted > most {
					t.Errorf("%d of %d were admitted, want at most %d", admitted, rate*seconds, most)
				}
				if len(b.guard.proven) > maxSenders {
					t.Errorf("%d senders are kept", len(b.guard.proven))
				}
			})
		}
	}
}
