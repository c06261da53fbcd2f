package pairing

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
)

func lines(rates ...unit.Bandwidth) []Line {
	var list []Line
	for _, r := range rates {
		if r != Unknown {
			r *= unit.MbitPerSecond
		}
		list = append(list, Line{Up: r, Down: r})
	}
	return list
}

// backup makes the last of these lines a backup.
func backup(list []Line) []Line {
	list[len(list)-1].Backup = true
	return list
}

func always(Pair) bool { return true }

// sites are two that packets are carried between.
func sites(here, there []Line, answers func(Pair) bool) Sites {
	return Sites{Here: here, There: there, Answers: answers}
}

func TestChoose(t *testing.T) {
	except := func(list ...Pair) func(Pair) bool { return func(p Pair) bool { return !slices.Contains(list, p) } }
	for _, tc := range []struct {
		name          string
		sites         Sites
		current, want []Pair
	}{
		{"alike", sites(lines(20, 20), lines(20, 20), always), nil, []Pair{{0, 0}, {1, 1}}},
		{"in use", sites(lines(20, 20), lines(20, 20), always), []Pair{{0, 1}, {1, 0}}, []Pair{{0, 1}, {1, 0}}},
		{"both on one", sites(lines(20, 20), lines(20, 20), always), []Pair{{0, 1}, {1, 1}}, []Pair{{0, 1}, {1, 0}}},
		{"by rate", sites(lines(10, 100), lines(100, 10), always), nil, []Pair{{0, 1}, {1, 0}}},
		{"by rate, though others are in use", sites(lines(10, 100), lines(100, 10), always), []Pair{{0, 0}, {1, 1}}, []Pair{{0, 1}, {1, 0}}},
		{"a little more is no reason", sites(lines(90, 100), lines(100, 90), always), []Pair{{0, 0}, {1, 1}}, []Pair{{0, 0}, {1, 1}}},
		{"it is while no packets are carried", Sites{lines(90, 100), lines(100, 90), always, true}, []Pair{{0, 0}, {1, 1}}, []Pair{{0, 1}, {1, 0}}},
		{"one here", sites(lines(40), lines(20, 20), always), []Pair{{0, 0}}, []Pair{{0, 0}, {0, 1}}},
		{"one there", sites(lines(20, 20), lines(40), always), nil, []Pair{{0, 0}, {1, 0}}},
		{"the fast one is shared", sites(lines(100, 20), lines(20, 50, 50), always), nil, []Pair{{0, 1}, {0, 2}, {1, 0}}},
		{"who shares, too", sites(lines(200, 39), lines(74, 52, 30), always), nil, []Pair{{0, 0}, {0, 1}, {1, 2}}},
		{"one does not answer", sites(lines(20, 20), lines(20, 20), except(Pair{0, 1}, Pair{1, 1})), []Pair{{0, 0}, {1, 1}}, []Pair{{0, 0}, {1, 0}}},
		{"only crossed", sites(lines(20, 20), lines(20, 20), except(Pair{0, 0}, Pair{1, 1})), nil, []Pair{{0, 1}, {1, 0}}},
		{"it returns", sites(lines(20, 20), lines(20, 20), always), []Pair{{0, 0}, {0, 1}}, []Pair{{0, 0}, {1, 1}}},
		{"a line is gone", sites(lines(20), lines(20, 20), always), []Pair{{0, 0}, {1, 1}, {7, 7}, {-1, 0}}, []Pair{{0, 0}, {0, 1}}},
		{"unknown rates", sites(lines(Unknown, 10), lines(10, Unknown), always), nil, []Pair{{0, 1}, {1, 0}}},
		{"a backup shares", sites(backup(lines(20, 5)), lines(20, 20), always), nil, []Pair{{0, 0}, {0, 1}, {1, 0}}},
		{"a backup there", sites(lines(20, 20), backup(lines(20, 5)), always), []Pair{{0, 0}, {1, 1}}, []Pair{{0, 0}, {1, 0}, {1, 1}}},
		{"backups at both", sites(backup(lines(20, 5)), backup(lines(20, 5)), always), nil, []Pair{{0, 0}, {0, 1}, {1, 0}}},
		{"a backup stays where it is", sites(backup(lines(20, 5)), lines(20, 20), always), []Pair{{1, 1}}, []Pair{{0, 0}, {0, 1}, {1, 1}}},
		{"only backups answer", sites(backup(lines(5)), backup(lines(5)), always), nil, []Pair{{0, 0}}},
		{"a backup alone", sites(backup(lines(5)), lines(20, 20), always), nil, []Pair{{0, 0}, {0, 1}}},
		{"a backup that a later line makes spare", sites(backup(lines(0, 0)), lines(0, 0, 0, 0), except(Pair{0, 2})), []Pair{{1, 3}}, []Pair{{0, 0}, {0, 1}, {0, 3}, {1, 2}}},
		{"none", sites(nil, lines(20), always), []Pair{{0, 0}}, nil},
	} {
		if got := tc.sites.Choose(tc.current); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestRates(t *testing.T) {
	const mbit = unit.MbitPerSecond
	line := func(up, down unit.Bandwidth) []Line { return []Line{{Up: up * mbit, Down: down * mbit}} }
	s := sites(lines(40, Unknown), []Line{{Up: 10 * mbit, Down: 30 * mbit}, {Down: 30 * mbit}, {Up: Unknown, Down: Unknown}}, always)
	for _, tc := range []struct {
		pairs []Pair
		want  []Line
	}{
		{[]Pair{{0, 0}}, line(30, 10)},
		{[]Pair{{0, 0}, {0, 1}}, append(line(20, 10), line(20, 0)...)},
		{[]Pair{{0, 2}, {1, 2}}, append(line(40, 40), Line{Up: Unknown, Down: Unknown})},
	} {
		if got := s.Rates(tc.pairs); !slices.Equal(got, tc.want) {
			t.Errorf("%v: %v, want %v", tc.pairs, got, tc.want)
		}
	}
}

// drawn are random sites with random pairs that answer and are in use.
func drawn(t *rapid.T) (s Sites, current []Pair) {
	rate := rapid.OneOf(rapid.SampledFrom([]unit.Bandwidth{0, Unknown, 1, 1000 * unit.TbitPerSecond}), rapid.Custom(func(t *rapid.T) unit.Bandwidth {
		return unit.Bandwidth(rapid.Int64Range(1, 1000).Draw(t, "rate")) * unit.MbitPerSecond
	}))
	backups := rapid.Bool().Draw(t, "backups")
	line := rapid.Custom(func(t *rapid.T) Line {
		return Line{rate.Draw(t, "up"), rate.Draw(t, "down"), backups && rapid.Bool().Draw(t, "backup")}
	})
	s.Here, s.There = rapid.SliceOfN(line, 0, 16).Draw(t, "here"), rapid.SliceOfN(line, 0, 16).Draw(t, "there")
	share := rapid.IntRange(0, 4).Draw(t, "share")
	answers := rapid.SliceOfN(rapid.IntRange(0, 3), 16*16, 16*16).Draw(t, "answers")
	s.Answers = func(p Pair) bool { return answers[p.Here*16+p.There] < share }
	current = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Pair {
		return Pair{rapid.IntRange(-1, 16).Draw(t, "here"), rapid.IntRange(-1, 16).Draw(t, "there")}
	}), 0, 16).Draw(t, "current")
	return s, current
}

// largest returns the size of a largest matching, by augmenting paths.
func (s *Sites) largest() int {
	partner := make([]int, len(s.There))
	for j := range partner {
		partner[j] = -1
	}
	n := 0
	for i := range s.Here {
		seen := map[int]bool{}
		var extend func(i int) bool
		extend = func(i int) bool {
			for j := range partner {
				if s.has(Pair{i, j}) && !seen[j] {
					seen[j] = true
					if partner[j] < 0 || extend(partner[j]) {
						partner[j] = i
						return true
					}
				}
			}
			return false
		}
		if extend(i) {
			n++
		}
	}
	return n
}

// TestEveryLineIsUsed: every line that reaches any is in a pair, by as few pairs as possible: where
// each line can have one of its own, it has.
func TestEveryLineIsUsed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, current := drawn(t)
		pairs := s.Choose(current)
		reach := 0
		for i := range s.Here {
			if slices.ContainsFunc(s.all(), func(p Pair) bool { return p.Here == i }) {
				reach++
			}
		}
		for j := range s.There {
			if slices.ContainsFunc(s.all(), func(p Pair) bool { return p.There == j }) {
				reach++
			}
		}
		if n := covered(pairs); n != reach {
			t.Fatalf("%v has %d of %d lines", pairs, n, reach)
		}
		backup := func(l Line) bool { return l.Backup }
		backups := slices.ContainsFunc(s.Here, backup) || slices.ContainsFunc(s.There, backup)
		if want := reach - s.largest(); len(pairs) != want && !backups {
			t.Fatalf("%d pairs, want %d: %v", len(pairs), want, pairs)
		}
		for i, p := range pairs {
			if !s.has(p) || slices.Contains(pairs[:i], p) {
				t.Fatalf("pair %v of %v", p, pairs)
			}
		}
	})
}

// all returns all pairs that answer.
func (s *Sites) all() []Pair {
	var list []Pair
	for i := range s.Here {
		for j := range s.There {
			if s.Answers(Pair{i, j}) {
				list = append(list, Pair{i, j})
			}
		}
	}
	return list
}

// TestStable: what was chosen is chosen again.
func TestStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, current := drawn(t)
		pairs := s.Choose(current)
		if again := s.Choose(pairs); !slices.Equal(again, pairs) {
			t.Fatalf("%v, then %v", pairs, again)
		}
	})
}

// TestBestByRate: no other assignment of few lines has a higher rate.
func TestBestByRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "lines")
		rate := rapid.Custom(func(t *rapid.T) Line {
			return Line{Up: unit.Bandwidth(rapid.IntRange(0, 50).Draw(t, "up")) * unit.MbitPerSecond, Down: unit.Bandwidth(rapid.IntRange(0, 50).Draw(t, "down")) * unit.MbitPerSecond}
		})
		s := sites(rapid.SliceOfN(rate, n, n).Draw(t, "here"), rapid.SliceOfN(rate, n, n).Draw(t, "there"), always)
		best := s.Value(s.Choose(nil))
		order := make([]int, n)
		for i := range order {
			order[i] = i
		}
		var permute func(k int)
		permute = func(k int) {
			if k == n {
				var pairs []Pair
				for i, j := range order {
					pairs = append(pairs, Pair{i, j})
				}
				if v := s.Value(pairs); v > best {
					t.Fatalf("%v has %d kbit/s, chosen %d", pairs, v, best)
				}
				return
			}
			for i := k; i < n; i++ {
				order[k], order[i] = order[i], order[k]
				permute(k + 1)
				order[k], order[i] = order[i], order[k]
			}
		}
		permute(0)
	})
}

// TestNearBest: of 600 drawn sites with 2 to 4 lines each, of 2 Mbit/s to 1 Gbit/s down and a 20th
// of it to all of it up, as many pairs as are chosen have at most a little more, by brute force.
func TestNearBest(t *testing.T) {
	r := rand.New(rand.NewPCG(36, 1))
	between := func(low, high float64) float64 { return low * math.Pow(high/low, r.Float64()) }
	draw := func() (list []Line) {
		for range 2 + r.IntN(3) {
			down := between(2, 1000) * float64(unit.MbitPerSecond)
			list = append(list, Line{Up: unit.Bandwidth(down / between(1, 20)), Down: unit.Bandwidth(down)})
		}
		return list
	}
	less := 0
	for range 600 {
		s := Sites{Here: draw(), There: draw(), Answers: always}
		pairs := s.Choose(nil)
		every, most := s.all(), int64(0)
		var set func(from int, pairs []Pair)
		set = func(from int, chosen []Pair) {
			if len(chosen) == len(pairs) {
				if covered(chosen) == len(s.Here)+len(s.There) {
					most = max(most, s.Value(chosen))
				}
				return
			}
			for i := from; i < len(every); i++ {
				set(i+1, append(chosen, every[i]))
			}
		}
		set(0, nil)
		switch v := s.Value(pairs); {
		case v < most*9/10:
			t.Errorf("%v has %d kbit/s, others have %d: %+v", pairs, v, most, s)
		case v < most*99/100:
			less++
		}
	}
	if less > 6 {
		t.Errorf("%d of 600 have less than 0.99 of the most", less)
	}
}

// TestSharesFit: the rates of pairs are no more than any line has.
func TestSharesFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, current := drawn(t)
		pairs := s.Choose(current)
		here, there := map[int]float64{}, map[int]float64{}
		for i, r := range s.Rates(pairs) {
			if r.Up < 0 || r.Down < 0 {
				t.Fatalf("%v: %v", pairs[i], r)
			}
			if r.Up != Unknown && !s.backup(pairs[i]) {
				here[pairs[i].Here] += float64(r.Up)
				there[pairs[i].There] += float64(r.Up)
			}
		}
		for i, sum := range here {
			if sum > float64(s.Here[i].Up)*1.001 {
				t.Errorf("line %d here has %v of %v", i, sum, s.Here[i].Up)
			}
		}
		for j, sum := range there {
			if sum > float64(s.There[j].Down)*1.001 {
				t.Errorf("line %d there has %v of %v", j, sum, s.There[j].Down)
			}
		}
	})
}
