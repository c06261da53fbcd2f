package router

import (
	"iter"
	"math/bits"
	"net/netip"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/message"
)

// Generate is a table like that of the Internet, for measurements: its prefix lengths are
// distributed as in the global tables, and about six prefixes have the same origin and AS path. The
// same values always give the same routes; a larger table contains the smaller ones.
type Generate struct {
	// IPv6 is the number of IPv6 prefixes. Example: 100000
	IPv6 int `yaml:"ipv6,omitempty"`
	// IPv4 is the number of IPv4 prefixes. Example: 100000
	IPv4 int `yaml:"ipv4,omitempty"`
	// Seed selects one of many tables. Example: 1
	Seed uint64 `yaml:"seed,omitempty"`
}

const (
	// perOrigin prefixes have the same origin, AS path and communities.
	perOrigin = 6
	// blocks6 and blocks4 are the numbers of origins with address space of their own: /28s of five
	// /12s of the regional registries, and /19s of the first octets that have no bogon (RFC 6890).
	blocks6 = 5 << 16
	blocks4 = 208 << 11
	// maxGenerated prefixes of a version can be generated.
	maxGenerated = 1_900_000
)

// The parts of the prefix lengths in the global tables, in per mille, roughly: almost half of the
// IPv6 prefixes are /48s and an eighth /32s, and more than half of the IPv4 prefixes are /24s.
// Shorter ones than a block are left out.
var (
	lengths6 = []share{{48, 460}, {32, 120}, {44, 110}, {40, 90}, {36, 50}, {29, 35}, {46, 30}, {47, 25}, {45, 20}, {42, 20}, {33, 15}, {34, 10}, {38, 10}, {30, 5}}
	lengths4 = []share{{24, 615}, {22, 115}, {23, 105}, {21, 55}, {20, 50}, {19, 60}}
)

type share struct{ length, perMille int }

func (g Generate) check() fault.List {
	var faults fault.List
	for key, n := range map[string]int{"ipv6": g.IPv6, "ipv4": g.IPv4} {
		if n < 0 || n > maxGenerated {
			faults.Add(key, "must be from 0 to %d, got %d", maxGenerated, n)
		}
	}
	return faults
}

// routes iterates over the routes. Those of one origin share the slices of their attributes.
func (g Generate) routes() iter.Seq[bgp.UnicastRoute] {
	return func(yield func(bgp.UnicastRoute) bool) {
		_ = g.each(g.IPv6, blocks6, lengths6, block6, yield) && g.each(g.IPv4, blocks4, lengths4, block4, yield)
	}
}

// each yields n routes in blocks of address space; it returns false when yield does.
func (g Generate) each(n, blocks int, lengths []share, block func(int) netip.Prefix, yield func(bgp.UnicastRoute) bool) bool {
	// The order of blocks is a permutation: the factor is a prime that does not divide their
	// number.
	const factor = 2654435761
	offset := mix(g.Seed) % uint64(blocks)
	taken := map[netip.Prefix]bool{}
	for origin := 0; n > 0; origin++ {
		clear(taken)
		random := g.Seed<<32 ^ uint64(origin)
		next := func(below int) int {
			random++
			hi, _ := bits.Mul64(mix(random), uint64(below))
			return int(hi)
		}
		space := block(int((uint64(origin)*factor + offset) % uint64(blocks)))
		attributes := path(origin, next)
		for range min(n, perOrigin) {
			var p netip.Prefix
			for tries := 0; tries == 0 || taken[p]; tries++ {
				p = within(space, pick(lengths, next(1000)), next)
				if tries > 20 {
					p = within(space, lengths[0].length, next) // the short ones are taken
				}
			}
			taken[p] = true
			if n--; !yield(bgp.UnicastRoute{Prefix: p, Attributes: attributes}) {
				return false
			}
		}
	}
	return true
}

func pick(lengths []share, at int) int {
	for _, l := range lengths {
		if at -= l.perMille; at < 0 {
			return l.length
		}
	}
	return lengths[0].length
}

// path returns the attributes of an origin's routes: from one to five more ASes, as most AS paths
// have, and communities of the first.
func path(origin int, next func(int) int) (a bgp.Attributes) {
	var asns []uint32
	for range 1 + (next(3)+next(3))/2 {
		asns = append(asns, 2000+uint32(next(300)))
	}
	a.ASPath = message.MakeASPath(append(asns, 200_000+uint32(origin))...)
	for range next(4) {
		a.Communities = append(a.Communities, asns[0]<<16|uint32(next(50)))
	}
	return a
}

// within returns a prefix of a length in a block, at a random place.
func within(block netip.Prefix, length int, next func(int) int) netip.Prefix {
	bytes := block.Addr().AsSlice()
	for bit := block.Bits(); bit < length; bit++ {
		bytes[bit/8] |= byte(next(2)) << (7 - bit%8)
	}
	a, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(a, length)
}

func block6(n int) netip.Prefix {
	registry := []byte{0x24, 0x26, 0x28, 0x2a, 0x2c}[n>>16]
	at := n & 0xffff // the bits 12 to 28
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{registry, byte(at >> 12), byte(at >> 4), byte(at << 4)}), 28)
}

func block4(n int) netip.Prefix {
	octet := byte(1 + n>>11)
	for _, bogon := range []byte{10, 100, 127, 169, 172, 192, 198, 203} {
		if octet >= bogon {
			octet++
		}
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{octet, byte(n >> 3), byte(n << 5)}), 19)
}

// mix is the finalizer of splitmix64: a permutation of 64 bits without visible pattern.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
