package message

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/tabane/tabane/internal/bgp/srv6"
)

// stream returns UPDATEs with n routes, of which each attributes have some.
func stream(b testing.TB, n Negotiated, f Family, sets []*Attributes, routes int) []byte {
	b.Helper()
	r := rand.New(rand.NewPCG(3, 4))
	e := NewEncoder(n)
	var out []byte
	for _, a := range sets {
		nlri := make([]NLRI, routes/len(sets))
		for i := range nlri {
			nlri[i] = NLRI{Key: randomKey(r, f), Label: ImplicitNull}
		}
		for len(nlri) > 0 {
			var sent int
			var err error
			if out, sent, err = e.Announce(out, a, nlri); err != nil {
				b.Fatal(err)
			}
			nlri = nlri[sent:]
		}
	}
	return out
}

// paths returns n attributes that differ in the AS path, as those of VPN routes of one ASBR do.
func paths(b testing.TB, in *Interner, n int) []*Attributes {
	b.Helper()
	r := rand.New(rand.NewPCG(5, 6))
	service, _, err := NewService(addr("fcbb:1:1:a::"), srv6.Structure{Block: 32, Node: 16, Function: 16}, 18)
	if err != nil {
		b.Fatal(err)
	}
	sets := make([]*Attributes, n)
	for i := range sets {
		path := []uint32{65001}
		for range 1 + r.IntN(6) {
			path = append(path, 1+r.Uint32N(400000))
		}
		sets[i] = in.Intern(Fields{
			NextHop: addr("2001:db8::1"), ASPath: MakeASPath(path...), LocalPref: 100, HasLocalPref: true,
			Communities: []uint32{65001<<16 | uint32(i%50), 65001<<16 | 666},
			Extended:    []uint64{rd(b, "65000:101").Target()}, PrefixSID: service.PrefixSID(),
		})
	}
	return sets
}

// BenchmarkDecode reports the cost of a route in UPDATEs whose attributes are known.
func BenchmarkDecode(b *testing.B) {
	for _, bb := range []struct {
		name   string
		family Family
		each   int // routes with the same attributes
	}{
		{"ipv6-unicast/packed", IPv6Unicast, 200}, {"vpnv6/packed", VPNv6, 100}, {"ipv4-unicast/packed", IPv4Unicast, 500},
		{"ipv6-unicast/7", IPv6Unicast, 7}, {"vpnv6/7", VPNv6, 7}, {"vpnv6/1", VPNv6, 1},
	} {
		b.Run(bb.name, func(b *testing.B) {
			in := NewInterner()
			const routes = 70000
			sets := paths(b, in, routes/bb.each)
			s := stream(b, everything, bb.family, sets, routes)
			d := NewDecoder(everything, true, in)
			var u Update
			b.ReportAllocs()
			decoded := 0
			for b.Loop() {
				for rest := s; len(rest) > 0; {
					_, length, _ := ParseHeader(rest, MaxLen)
					if err := d.Update(rest[HeaderLen:length], &u); err != nil || len(u.Announced) != 1 {
						b.Fatal(err)
					}
					decoded += len(u.Announced[0].NLRI)
					rest = rest[length:]
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(decoded), "ns/route")
			runtime.KeepAlive(sets)
		})
	}
}

// BenchmarkEncode reports the cost of an announced route.
func BenchmarkEncode(b *testing.B) {
	for _, each := range []int{100, 7, 1} {
		b.Run(fmt.Sprintf("vpnv6/%d", each), func(b *testing.B) {
			sets := paths(b, NewInterner(), 1000)
			r := rand.New(rand.NewPCG(3, 4))
			nlri := make([]NLRI, each)
			for i := range nlri {
				nlri[i] = NLRI{randomKey(r, VPNv6), ImplicitNull}
			}
			e := NewEncoder(everything)
			buf := make([]byte, 0, 1<<16)
			b.ReportAllocs()
			sent := 0
			for b.Loop() {
				for _, a := range sets {
					for left := nlri; len(left) > 0; {
						var n int
						buf, n, _ = e.Announce(buf[:0], a, left)
						left = left[n:]
						sent += n
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(sent), "ns/route")
		})
	}
}

// BenchmarkAttributes reports the memory of attributes that differ in the AS path.
func BenchmarkAttributes(b *testing.B) {
	const n = 150000
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		in := NewInterner()
		sets := paths(b, in, n)
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n-8, "B/set")
		b.ReportMetric(float64(after.Sys-before.Sys)/1e6, "MB-sys")
		runtime.KeepAlive(sets)
		runtime.KeepAlive(in)
	}
}

// BenchmarkDerive reports the cost of new attributes derived from others, as import and export
// policy do once for each of them.
func BenchmarkDerive(b *testing.B) {
	in := NewInterner()
	sets := paths(b, in, 20000)
	b.ReportAllocs()
	i := uint32(0)
	for b.Loop() {
		f := sets[i%uint32(len(sets))].Fields()
		f.LocalPref = i
		f.ASPath = f.ASPath.Prepend(65000, 1)
		f.Communities = append(f.Communities, GracefulShutdown)
		in.Intern(f)
		i++
	}
}
