package pairing

import (
	"cmp"
	"math"
	"slices"

	"github.com/tabane/tabane/internal/base/unit"
)

// Unknown is a rate that is not known.
const Unknown unit.Bandwidth = math.MaxInt64

// unknownValue is what a pair of two unknown rates counts as.
const unknownValue = unit.GbitPerSecond

// Line is a line of a site, with its rates from and to the site; 0 carries nothing.
type Line struct {
	Up, Down unit.Bandwidth
	// Backup: the line is used when others are not. It takes no rate from them.
	Backup bool
}

// Pair is a path: indices of a line here and of one of the other site.
type Pair struct{ Here, There int }

// Sites are the lines of two sites.
type Sites struct {
	Here, There []Line
	// Answers reports whether the lines of a pair reach each other.
	Answers func(Pair) bool
	// Idle: no packets are carried, which a change would cost.
	Idle bool
}

// gain returns the part that others than the pairs in use must have more: an nth. While packets are
// carried a quarter, else what rates that are measured may differ by.
func (s *Sites) gain() int64 {
	if s.Idle {
		return 20
	}
	return 4
}

// Choose returns the pairs to use: as few as there have to be for each line of either site that
// reaches any to be in one, and among those of the highest rates. A line that is left over shares
// one of the other site. current are the pairs in use: they are kept unless others have more lines,
// are fewer, or have a rate that is higher by a quarter, or by a twentieth if no packets are
// carried. Backups come after the other lines: each that is in no pair gets one, with a line that is
// no backup if it reaches any.
func (s *Sites) Choose(current []Pair) []Pair {
	regular := &Sites{Here: s.Here, There: s.There, Answers: func(p Pair) bool { return !s.backup(p) && s.Answers(p) }, Idle: s.Idle}
	pairs := regular.choose(current)
	for i := range s.Here {
		pairs = s.addLeft(pairs, current, func(p Pair) bool { return p.Here == i })
	}
	for j := range s.There {
		pairs = s.addLeft(pairs, current, func(p Pair) bool { return p.There == j })
	}
	pairs = s.withoutSpare(pairs)
	slices.SortFunc(pairs, compare)
	return pairs
}

// backup reports whether a line of a pair is a backup, backups whether both are.
func (s *Sites) backup(p Pair) bool { return s.Here[p.Here].Backup || s.There[p.There].Backup }

func (s *Sites) backups(p Pair) bool { return s.Here[p.Here].Backup && s.There[p.There].Backup }

// withoutSpare removes the pairs of backups whose lines are both in other pairs that serve them as
// well: a line that came later may have got one that serves an earlier one too.
func (s *Sites) withoutSpare(pairs []Pair) []Pair {
	for i := len(pairs) - 1; i >= 0; i-- {
		p := pairs[i]
		in := func(same func(Pair) bool) bool {
			return slices.ContainsFunc(pairs, func(q Pair) bool { return q != p && same(q) && (s.backups(p) || !s.backups(q)) })
		}
		if s.backup(p) && in(func(q Pair) bool { return q.Here == p.Here }) && in(func(q Pair) bool { return q.There == p.There }) {
			pairs = slices.Delete(pairs, i, i+1)
		}
	}
	return pairs
}

// addLeft adds a pair for a line that has none, if it reaches any: with a line that is no backup,
// else with that of now, else with the fastest.
func (s *Sites) addLeft(pairs, current []Pair, of func(Pair) bool) []Pair {
	if slices.ContainsFunc(pairs, of) {
		return pairs
	}
	var best Pair
	most := int64(-1)
	for i := range s.Here {
		for j := range s.There {
			p := Pair{i, j}
			if !of(p) || !s.has(p) {
				continue
			}
			value := s.worth(p)
			if slices.Contains(current, p) {
				value += 4 * mostValue
			}
			if !s.backups(p) {
				value += 8 * mostValue
			}
			if value > most {
				best, most = p, value
			}
		}
	}
	if most < 0 {
		return pairs
	}
	return append(pairs, best)
}

// choose is Choose without backups. What it returns it would keep: a set is only replaced by one
// whose rate is higher by more than gain, so the loop ends.
func (s *Sites) choose(current []Pair) []Pair {
	for {
		kept := slices.DeleteFunc(slices.Clone(current), func(p Pair) bool { return !s.has(p) })
		best := s.cover(kept)
		slices.SortFunc(kept, compare)
		kept = slices.Compact(kept)
		if covered(kept) == covered(best) && len(kept) == len(best) && s.Value(kept) >= s.Value(best)/(s.gain()+1)*s.gain() {
			return kept
		}
		current = best
	}
}

// has reports whether a pair is one of the sites, and answers.
func (s *Sites) has(p Pair) bool {
	return p.Here >= 0 && p.Here < len(s.Here) && p.There >= 0 && p.There < len(s.There) && s.Answers(p)
}

func compare(a, b Pair) int {
	return cmp.Or(cmp.Compare(a.Here, b.Here), cmp.Compare(a.There, b.There))
}

// covered returns how many lines of both sites are in pairs.
func covered(pairs []Pair) int {
	here, there := map[int]bool{}, map[int]bool{}
	for _, p := range pairs {
		here[p.Here], there[p.There] = true, true
	}
	return len(here) + len(there)
}

// cover returns a smallest set of pairs that has all lines which reach any: a largest matching, and
// a pair for each line that is left over (Gallai's theorem: none is smaller).
func (s *Sites) cover(current []Pair) []Pair {
	pairs := s.match(current)
	here, there := make([]bool, len(s.Here)), make([]bool, len(s.There))
	for _, p := range pairs {
		here[p.Here], there[p.There] = true, true
	}
	for i := range here {
		if !here[i] {
			pairs = s.share(pairs, current, func(p Pair) bool { return p.Here == i })
		}
	}
	for j := range there {
		if !there[j] {
			pairs = s.share(pairs, current, func(p Pair) bool { return p.There == j })
		}
	}
	pairs = s.improve(pairs, current)
	slices.SortFunc(pairs, compare)
	return pairs
}

// improve exchanges the lines of one or two pairs while that has all lines in pairs and raises the
// rates: a matching is best without the lines that are left over, which want the faster ones.
func (s *Sites) improve(pairs, current []Pair) []Pair {
	lines, value := covered(pairs), s.biased(pairs, current)
	for better := true; better; {
		better = false
		try := func(changed []Pair) {
			if v := s.biased(changed, current); v > value && covered(changed) == lines {
				pairs, value, better = changed, v, true
			}
		}
		for n, p := range pairs {
			for i := range max(len(s.Here), len(s.There)) {
				for _, q := range []Pair{{i, p.There}, {p.Here, i}} {
					if s.has(q) && !slices.Contains(pairs, q) {
						try(replaced(pairs, n, q))
					}
				}
			}
			for k, o := range pairs[:n] {
				if a, b := (Pair{p.Here, o.There}), (Pair{o.Here, p.There}); s.has(a) && s.has(b) && !slices.Contains(pairs, a) && !slices.Contains(pairs, b) {
					try(replaced(replaced(pairs, n, a), k, b))
				}
			}
			if better {
				break // pairs are others
			}
		}
	}
	return pairs
}

// replaced returns pairs of which one is another.
func replaced(pairs []Pair, n int, p Pair) []Pair {
	pairs = slices.Clone(pairs)
	pairs[n] = p
	return pairs
}

// biased returns the value of pairs, of which those in use count more by gain.
func (s *Sites) biased(pairs, current []Pair) int64 {
	value := s.Value(pairs)
	for _, p := range pairs {
		if slices.Contains(current, p) {
			value += s.worth(p)/s.gain() + 1
		}
	}
	return value
}

// share adds the pair of a line that is left over which adds most, if it reaches any.
func (s *Sites) share(pairs, current []Pair, of func(Pair) bool) []Pair {
	var best Pair
	most := int64(-1)
	for i := range s.Here {
		for j := range s.There {
			p := Pair{i, j}
			if !of(p) || !s.has(p) {
				continue
			}
			value := 2 * s.Value(append(pairs[:len(pairs):len(pairs)], p))
			if slices.Contains(current, p) {
				value++
			}
			if value > most {
				best, most = p, value
			}
		}
	}
	if most < 0 {
		return pairs
	}
	return append(pairs, best)
}

// worth returns the rates of both directions that a pair alone carries, in kbit/s.
func (s *Sites) worth(p Pair) int64 {
	return kilobits(min(s.Here[p.Here].Up, s.There[p.There].Down)) + kilobits(min(s.Here[p.Here].Down, s.There[p.There].Up))
}

// mostValue bounds a rate in kbit/s, so that sums of them fit.
const mostValue = int64(1) << 40

func kilobits(rate unit.Bandwidth) int64 {
	if rate == Unknown {
		rate = unknownValue
	}
	return min(int64(rate/unit.KbitPerSecond), mostValue)
}

// match returns a largest set of pairs without a common line, of those one of the highest rates, by
// the algorithm of Hungary (Kuhn 1955, in the form of shortest augmenting paths). Pairs in use
// count more by gain, so that few change if some have to.
func (s *Sites) match(current []Pair) []Pair {
	n := max(len(s.Here), len(s.There))
	// More than any sum of rates: a larger set is always better.
	const one = mostValue << 9
	cost := func(i, j int) int64 {
		p := Pair{i, j}
		if !s.has(p) {
			return 0
		}
		w := s.worth(p)
		if slices.Contains(current, p) {
			w += w/s.gain() + 1
		}
		return -one - w
	}
	// Potentials of rows and columns, and the row of each column; row and column 0 are none.
	u, v, row := make([]int64, n+1), make([]int64, n+1), make([]int, n+1)
	for i := 1; i <= n; i++ {
		row[0] = i
		least, used, from := slices.Repeat([]int64{math.MaxInt64}, n+1), make([]bool, n+1), make([]int, n+1)
		at := 0
		for row[at] != 0 {
			used[at] = true
			next, delta := 0, int64(math.MaxInt64)
			for j := 1; j <= n; j++ {
				if used[j] {
					continue
				}
				if c := cost(row[at]-1, j-1) - u[row[at]] - v[j]; c < least[j] {
					least[j], from[j] = c, at
				}
				if least[j] < delta {
					next, delta = j, least[j]
				}
			}
			for j := 0; j <= n; j++ {
				if used[j] {
					u[row[j]] += delta
					v[j] -= delta
				} else {
					least[j] -= delta
				}
			}
			at = next
		}
		for ; at != 0; at = from[at] {
			row[at] = row[from[at]]
		}
	}
	var pairs []Pair
	for j := 1; j <= n; j++ {
		if p := (Pair{row[j] - 1, j - 1}); s.has(p) {
			pairs = append(pairs, p)
		}
	}
	return pairs
}

// Rates returns the rates of pairs from and to this site: a line that is in several is shared among
// them, each by what its other line carries. Rates of which neither line's is known are Unknown.
func (s *Sites) Rates(pairs []Pair) []Line {
	rates := make([]Line, len(pairs))
	for i, p := range pairs {
		beside := s.beside(pairs, p)
		rates[i].Up = shared(p, beside, func(p Pair) (a, b unit.Bandwidth) { return s.Here[p.Here].Up, s.There[p.There].Down })
		rates[i].Down = shared(p, beside, func(p Pair) (a, b unit.Bandwidth) { return s.Here[p.Here].Down, s.There[p.There].Up })
	}
	return rates
}

// beside returns the pairs that may share lines with one: a backup shares none.
func (s *Sites) beside(pairs []Pair, p Pair) []Pair {
	if s.backup(p) {
		return []Pair{p}
	}
	return slices.DeleteFunc(slices.Clone(pairs), s.backup)
}

// Shares reports whether a pair shares its line of this site with others.
func (s *Sites) Shares(pairs []Pair, p Pair) bool {
	return slices.ContainsFunc(s.beside(pairs, p), func(q Pair) bool { return q.Here == p.Here && q != p })
}

// shared returns the rate of one of these pairs in one direction, of which of has the rates of the
// lines.
func shared(p Pair, pairs []Pair, of func(Pair) (here, there unit.Bandwidth)) unit.Bandwidth {
	here, there := of(p)
	return min(
		share(here, there, pairs, func(q Pair) (unit.Bandwidth, bool) { _, r := of(q); return r, q.Here == p.Here }),
		share(there, here, pairs, func(q Pair) (unit.Bandwidth, bool) { r, _ := of(q); return r, q.There == p.There }))
}

// share returns the part that a pair has of one of its lines, whose other line is so fast. others
// is that of each pair, and whether it is on the same line.
func share(line, other unit.Bandwidth, pairs []Pair, others func(Pair) (unit.Bandwidth, bool)) unit.Bandwidth {
	if line == Unknown || line == 0 {
		return line
	}
	sum := 0.0
	for _, q := range pairs {
		if rate, same := others(q); same {
			sum += float64(min(rate, line))
		}
	}
	if sum <= float64(line) {
		return line
	}
	return unit.Bandwidth(float64(line) * (float64(min(other, line)) / sum))
}

// Value returns the rates of pairs in both directions, in kbit/s.
func (s *Sites) Value(pairs []Pair) int64 {
	sum := int64(0)
	for _, r := range s.Rates(pairs) {
		sum += kilobits(r.Up) + kilobits(r.Down)
	}
	return sum
}
