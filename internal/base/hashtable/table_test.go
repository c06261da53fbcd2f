package hashtable_test

import (
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/hashtable"
	"github.com/tabane/tabane/internal/testkit/heap"
)

// A Table behaves as a map does, and its Refs stay.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var got hashtable.Table[uint16, int]
		want := map[uint16]int{}
		refs := map[uint16]hashtable.Ref{}
		keys := rapid.Uint16Range(0, uint16(rapid.SampledFrom([]int{20, 3000, 65535}).Draw(t, "keys")))
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				for _, k := range rapid.SliceOfN(keys, 1, 200).Draw(t, "added") {
					r, added := got.Add(k)
					if _, there := want[k]; added == there || !added && refs[k] != r {
						t.Fatalf("key %d: added %t, ref %d", k, added, r)
					}
					if added && *got.Value(r) != 0 {
						t.Fatalf("key %d: a new entry has value %d", k, *got.Value(r))
					}
					next++
					*got.Value(r), want[k], refs[k] = next, next, r
				}
			},
			"remove": func(t *rapid.T) {
				for _, k := range rapid.SliceOfN(keys, 1, 300).Draw(t, "removed") {
					r, ok := got.Find(k)
					if _, there := want[k]; ok != there {
						t.Fatalf("key %d: found %t", k, ok)
					}
					if ok {
						got.Remove(r)
						delete(want, k)
						delete(refs, k)
					}
				}
			},
			"clear": func(*rapid.T) {
				for r := range got.All() {
					got.Remove(r)
				}
				clear(want)
				clear(refs)
			},
			"": func(t *rapid.T) {
				seen := map[uint16]int{}
				for r := range got.All() {
					seen[got.Key(r)] = *got.Value(r)
				}
				if !maps.Equal(seen, want) || got.Len() != len(want) {
					t.Fatalf("%d entries, Len %d, want %d", len(seen), got.Len(), len(want))
				}
				n := 0
				for r, ok := got.Next(0); ok; r, ok = got.Next(r + 1) {
					if n++; seen[got.Key(r)] != *got.Value(r) {
						t.Fatal("Next and All differ")
					}
				}
				if n != len(want) {
					t.Fatalf("Next returned %d entries, want %d", n, len(want))
				}
				for k, r := range refs {
					if at, ok := got.Find(k); !ok || at != r {
						t.Fatalf("key %d moved from %d to %d", k, r, at)
					}
				}
			},
		})
	})
}

func TestInterner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var in hashtable.Interner[string]
		uses := map[string]int{}
		numbers := map[string]uint32{}
		value := func() string { return rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "value") }
		t.Repeat(map[string]func(*rapid.T){
			"use": func(t *rapid.T) {
				v := value()
				n := in.Use(v)
				if uses[v]++; uses[v] > 1 && n != numbers[v] {
					t.Fatalf("%s is number %d and %d", v, n, numbers[v])
				}
				numbers[v] = n
			},
			"release": func(*rapid.T) {
				if v := value(); uses[v] > 0 {
					in.Release(numbers[v])
					uses[v]--
				}
			},
			"": func(t *rapid.T) {
				taken := map[uint32]bool{}
				for v, n := range uses {
					number, ok := in.Find(v)
					if ok != (n > 0) || ok && (number == 0 || taken[number] || in.Value(number) != v || in.Uses(number) != n) {
						t.Fatalf("%s, used %d times: number %d, found %t", v, n, number, ok)
					}
					taken[number] = ok
				}
				if in.Len() > 5 {
					t.Fatalf("numbers up to %d for four values", in.Len())
				}
			},
		})
	})
}

func TestPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := prefix(t)
		if got := hashtable.Compact(p).Netip(); got != p {
			t.Fatalf("%v became %v", p, got)
		}
	})
	if c := hashtable.Compact(netip.Prefix{}); c != (hashtable.Prefix{}) || c.Netip().IsValid() {
		t.Errorf("the invalid prefix became %v", c)
	}
	if hashtable.Compact(netip.MustParsePrefix("0.0.0.0/0")) == hashtable.Compact(netip.MustParsePrefix("::/0")) ||
		hashtable.Compact(netip.MustParsePrefix("1.2.3.4/32")) == hashtable.Compact(netip.MustParsePrefix("::ffff:1.2.3.4/128")) {
		t.Error("prefixes of two families are equal")
	}
}

// prefix draws prefixes of both families that often cover each other.
func prefix(t *rapid.T) netip.Prefix {
	length := rapid.IntRange(0, 4).Draw(t, "length")
	n := rapid.Uint8().Draw(t, "bits")
	if rapid.Bool().Draw(t, "ipv4") {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{n & 0xc0, 0, n, 1}), 8*length).Masked()
	}
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{n & 0xc0, n, 15: n}), 32*length).Masked()
}

func TestLongest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var routes hashtable.Prefixes[int]
		want := map[netip.Prefix]bool{}
		for range rapid.IntRange(0, 30).Draw(t, "changes") {
			p := prefix(t)
			if r, ok := routes.Find(p); ok && rapid.Bool().Draw(t, "remove") {
				routes.Remove(r)
				delete(want, p)
				continue
			}
			routes.Add(p)
			want[p] = true
		}
		dst := prefix(t)
		covering := slices.Collect(maps.Keys(want))
		covering = slices.DeleteFunc(covering, func(p netip.Prefix) bool { return p.Bits() > dst.Bits() || !p.Contains(dst.Addr()) })
		slices.SortFunc(covering, func(a, b netip.Prefix) int { return b.Bits() - a.Bits() })
		var got []netip.Prefix
		for r := range routes.Covering(dst) {
			got = append(got, routes.Key(r).Netip())
		}
		if !slices.Equal(got, covering) {
			t.Fatalf("%v is covered by %v, want %v", dst, got, covering)
		}
		if r, ok := routes.Longest(dst); ok != (len(covering) > 0) || ok && routes.Key(r).Netip() != covering[0] {
			t.Fatalf("longest of %v: %v", dst, routes.Key(r).Netip())
		}
	})
}

func many(n int) []netip.Prefix {
	list := make([]netip.Prefix, n)
	for i := range list {
		list[i] = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x2a, byte(i >> 16), byte(i >> 8), byte(i), 15: 1}), 128)
	}
	return list
}

// TestMemory: a prefix with a number takes less than 40 bytes, also after a table was emptied and
// filled again.
func TestMemory(t *testing.T) {
	list := many(200_000)
	before := heap.InUse()
	routes := new(hashtable.Prefixes[uint32])
	for range 2 {
		for _, p := range list {
			routes.Add(p)
		}
		if per := float64(heap.InUse()-before) / float64(len(list)); per > 40 {
			t.Errorf("%.1f bytes a route", per)
		}
		for r := range routes.All() {
			routes.Remove(r)
		}
	}
	runtime.KeepAlive(routes)
	runtime.KeepAlive(list)
}

func BenchmarkPrefixes(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		list := many(n)
		b.Run(fmt.Sprintf("add/%d", n), func(b *testing.B) {
			var t *hashtable.Prefixes[uint32]
			for i := 0; b.Loop(); i++ {
				if i%n == 0 {
					t = new(hashtable.Prefixes[uint32])
				}
				t.Add(list[i%n])
			}
		})
		t := new(hashtable.Prefixes[uint32])
		for _, p := range list {
			t.Add(p)
		}
		b.Run(fmt.Sprintf("find/%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				t.Find(list[i*7919%n])
			}
		})
	}
}
