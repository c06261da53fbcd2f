package rib

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/testkit/heap"
)

// million returns the keys of a full table, and attributes that seven of them share on average.
func million() (keys []message.Key, sets []*message.Attributes) {
	const routes = 1_000_000
	in := message.NewInterner()
	keys, sets = make([]message.Key, routes), make([]*message.Attributes, routes)
	for i := range keys {
		a := netip.MustParseAddr("2a00::").As16()
		binary.BigEndian.PutUint32(a[2:], uint32(i)*2654435761)
		keys[i] = message.KeyOf(netip.PrefixFrom(netip.AddrFrom16(a), 48))
		if i%7 == 0 {
			sets[i] = in.Intern(message.Fields{ASPath: message.MakeASPath(65001, uint32(i))})
		} else {
			sets[i] = sets[i-1]
		}
	}
	return keys, sets
}

// BenchmarkManySources: one operation is the removal of 100,000 routes of 200 sources, each of which
// has a reader, as when all sessions of a border router end at once.
func BenchmarkManySources(b *testing.B) {
	const sources = 200
	keys, sets := million()
	keys = keys[:100_000]
	for range b.N {
		r := New()
		consumers := []*Consumer{r.NewConsumer(message.IPv6Unicast, func() {})}
		drain := func() {
			for left := 1; left > 0; {
				left = 0
				for _, c := range consumers {
					c.Pull(1000, func(item Item) bool { return item.Path.Received != 0 })
					left += c.Pending()
				}
			}
		}
		var all []Source
		for range sources {
			s := r.AddSource(Peer{})
			all = append(all, s)
			consumers = append(consumers, r.NewReader(message.IPv6Unicast, s, func() {}))
		}
		for i, k := range keys {
			id := r.Hold(sets[i])
			r.Announce(k, Path{Received: id, Accepted: id, Source: all[i/(len(keys)/sources)]}, false)
			r.Release(id)
		}
		drain()
		began := cpuTime()
		for _, s := range all {
			for !r.Purge(message.IPv6Unicast, s, 1000) {
			}
		}
		drain()
		b.ReportMetric(float64((cpuTime()-began).Nanoseconds())/float64(len(keys)), "cpu-ns/route")
	}
}

// BenchmarkTable: one operation is a million routes from each source, taken by a consumer, and
// their removal. It does not include attributes.
func BenchmarkTable(b *testing.B) {
	keys, sets := million()
	for name, sources := range map[string]int{"one-path": 1, "two-paths": 2} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				before := heap.InUse()
				r := New()
				c := r.NewConsumer(message.IPv6Unicast, func() {})
				drain := func() {
					for c.Pending() > 0 {
						c.Pull(1000, func(item Item) bool { return item.Path.Received != 0 })
					}
				}
				var all []Source
				began := cpuTime()
				for n := range sources {
					s := r.AddSource(Peer{RouterID: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})})
					all = append(all, s)
					for i, k := range keys {
						id := r.Hold(sets[i])
						r.Announce(k, Path{Received: id, Accepted: id, Source: s}, false)
						r.Release(id)
					}
				}
				drain()
				routes := float64(len(keys) * sources)
				b.ReportMetric(float64((cpuTime()-began).Nanoseconds())/routes, "cpu-ns/route")
				b.ReportMetric(float64(heap.InUse()-before)/float64(len(keys)), "B/destination")
				began = cpuTime()
				for _, s := range all {
					for !r.Purge(message.IPv6Unicast, s, 1000) {
					}
					drain()
				}
				b.ReportMetric(float64((cpuTime()-began).Nanoseconds())/routes, "cpu-ns/removal")
			}
		})
	}
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
