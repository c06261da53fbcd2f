package sim

import (
	"container/heap"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// turns is a reference model of the tournament: container/heap.
type turns struct {
	list  []int32 // sources
	at    map[int32]time.Duration
	place map[int32]int
}

func (h *turns) Len() int { return len(h.list) }

func (h *turns) Less(i, j int) bool {
	a, b := h.list[i], h.list[j]
	return h.at[a] < h.at[b] || h.at[a] == h.at[b] && a < b
}

func (h *turns) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.place[h.list[i]], h.place[h.list[j]] = i, j
}

func (h *turns) Push(source any) {
	h.place[source.(int32)] = len(h.list)
	h.list = append(h.list, source.(int32))
}

func (h *turns) Pop() any {
	last := h.list[len(h.list)-1]
	h.list = h.list[:len(h.list)-1]
	delete(h.place, last)
	delete(h.at, last)
	return last
}

func (h *turns) set(source int32, at time.Duration) {
	h.at[source] = at
	if i, ok := h.place[source]; ok {
		heap.Fix(h, i)
	} else {
		heap.Push(h, source)
	}
}

// The tournament returns the same events as a heap after any sequence of operations.
func TestPropertyTournament(t *testing.T) { rapid.Check(t, tournamentIsHeap) }

func FuzzTournament(f *testing.F) { f.Fuzz(rapid.MakeFuzz(tournamentIsHeap)) }

func tournamentIsHeap(t *rapid.T) {
	sources := rapid.OneOf(rapid.IntRange(1, 20), rapid.IntRange(1, 300), rapid.SampledFrom([]int{4, 5, 16, 17, 64, 65, maxSources})).Draw(t, "sources")
	often := rapid.OneOf(rapid.Just(0), rapid.Just(sources), rapid.IntRange(0, min(sources, 20))).Draw(t, "often")
	got, want := newTournament(sources, often), turns{at: map[int32]time.Duration{}, place: map[int32]int{}}
	source := rapid.Int32Range(0, int32(sources-1))
	// Times close together, so that some are equal, and up to the latest.
	at := rapid.OneOf(rapid.Int64Range(0, 5), rapid.Int64Range(0, int64(MaxDuration)), rapid.Just(int64(latest)))
	t.Repeat(map[string]func(*rapid.T){
		"": func(t *rapid.T) {
			at, s, ok := got.first()
			if ok != (want.Len() > 0) {
				t.Fatalf("has an event: %v, with %d", ok, want.Len())
			}
			if ok && (s != want.list[0] || at != want.at[s]) {
				t.Fatalf("next is %d at %d, want %d at %d", s, at, want.list[0], want.at[want.list[0]])
			}
		},
		"set": func(t *rapid.T) {
			s, at := source.Draw(t, "source"), time.Duration(at.Draw(t, "at"))
			got.set(s, at)
			want.set(s, at)
		},
		"set earlier": func(t *rapid.T) {
			s, at := source.Draw(t, "source"), time.Duration(at.Draw(t, "at"))
			got.setEarlier(s, at)
			if before, ok := want.at[s]; !ok || at < before {
				want.set(s, at)
			}
		},
		"remove": func(t *rapid.T) {
			s := source.Draw(t, "source")
			got.remove(s)
			if i, ok := want.place[s]; ok {
				heap.Remove(&want, i)
			}
		},
		"first": func(t *rapid.T) {
			if want.Len() == 0 {
				return // to skip is a failure, if the input does it often enough
			}
			_, s, _ := got.first()
			got.remove(s)
			heap.Pop(&want)
		},
		"look": func(t *rapid.T) {
			s := source.Draw(t, "source")
			at, ok := want.at[s]
			if got.has(s) != ok || ok && got.at(s) != at {
				t.Fatalf("%d has an event: %v, want %v at %d", s, got.has(s), ok, at)
			}
		},
	})
}

// A time beyond the range of an entry is stored as the latest time, not as no event.
func TestTournamentLate(t *testing.T) {
	got := newTournament(maxSources, 1)
	got.set(maxSources-1, 1<<62)
	if at, s, ok := got.first(); !ok || s != maxSources-1 || at != latest || at <= MaxDuration {
		t.Errorf("%d at %s, %v", s, at, ok)
	}
}
