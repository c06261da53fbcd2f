package message

import (
	"hash/maphash"
	"runtime"
	"strings"
	"sync"
	"testing"
	"weak"
)

// TestInternerFrees: attributes that are no longer referenced are freed, and their entries removed.
func TestInternerFrees(t *testing.T) {
	in := NewInterner()
	kept := in.Intern(Fields{LocalPref: 1, HasLocalPref: true})
	const n = 3 * internShards * minSweep
	for i := range uint32(n) {
		in.Intern(Fields{MED: i, HasMED: true})
		if i%(n/8) == 0 {
			runtime.GC()
		}
	}
	entries := 0
	for i := range in.shards {
		entries += len(in.shards[i].sets)
	}
	if entries > n/2 {
		t.Errorf("%d entries after %d unreferenced attributes", entries, n)
	}
	runtime.GC()
	if got := in.Len(); got != 1 {
		t.Errorf("%d attributes in use, want 1", got)
	}
	if in.Intern(Fields{LocalPref: 1, HasLocalPref: true}) != kept {
		t.Error("attributes in use were removed")
	}
}

// TestInternerHashCollision: attributes with the hash of others are not shared, but correct.
func TestInternerHashCollision(t *testing.T) {
	in := NewInterner()
	other := in.Intern(Fields{MED: 1, HasMED: true})
	f := Fields{MED: 2, HasMED: true}
	hash := maphash.Bytes(in.seed, f.append(nil))
	in.shards[hash%internShards].sets[hash] = weak.Make(other)
	if med, _ := in.Intern(f).MED(); med != 2 {
		t.Errorf("MED %d", med)
	}
	runtime.KeepAlive(other)
}

// TestInternerConcurrent: several sessions get the same attributes, even while they are freed.
func TestInternerConcurrent(t *testing.T) {
	in := NewInterner()
	sets := make([][]*Attributes, 4)
	var wg sync.WaitGroup
	for i := range sets {
		wg.Go(func() {
			for k := range uint32(2000) {
				a := in.Intern(Fields{MED: k % 100, HasMED: true})
				if med, _ := a.MED(); med != k%100 {
					t.Errorf("MED %d, want %d", med, k%100)
				}
				if k >= 1900 {
					sets[i] = append(sets[i], a)
				}
			}
		})
	}
	wg.Go(func() { runtime.GC() })
	wg.Wait()
	for _, s := range sets[1:] {
		for k := range s {
			if s[k] != sets[0][k] {
				t.Fatal("equal attributes are not shared")
			}
		}
	}
}

// TestServiceShared: attributes that differ elsewhere share targets and SID.
func TestServiceShared(t *testing.T) {
	in := NewInterner()
	f := fullFields(t)
	services := map[*service]bool{}
	for i := range uint32(2 * internShards) {
		f.MED = i
		services[in.Intern(f).vpn] = true
	}
	if len(services) > internShards { // each shard has its own
		t.Errorf("%d services of %d attributes", len(services), 2*internShards)
	}
	f.Extended = f.Extended[:1]
	if got := in.Intern(f).Targets(); len(got) != 1 {
		t.Errorf("targets %v", got)
	}
	f.PrefixSID = strings.Repeat("x", 10)
	if _, err := in.Intern(f).Service().SID(3); err == nil {
		t.Error("a malformed Prefix-SID has a SID")
	}
}
