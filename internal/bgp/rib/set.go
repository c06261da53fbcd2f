package rib

import "math/bits"

// set is a set of destination indices: a bit for each, and a bit for each word that is not zero, so
// that a sparse set is searched quickly. The zero value is empty.
type set struct {
	words, summary []uint64
	n              int
}

const (
	wordShift = 6
	wordMask  = 63
)

func (s *set) has(i uint32) bool {
	w := i >> wordShift
	return int(w) < len(s.words) && s.words[w]&(1<<(i&wordMask)) != 0
}

// add reports whether i was absent.
func (s *set) add(i uint32) bool {
	w, bit := i>>wordShift, uint64(1)<<(i&wordMask)
	if int(w) >= len(s.words) {
		s.grow(int(w) + 1)
	}
	if s.words[w]&bit != 0 {
		return false
	}
	s.words[w] |= bit
	s.summary[w>>wordShift] |= 1 << (w & wordMask)
	s.n++
	return true
}

// remove reports whether i was present.
func (s *set) remove(i uint32) bool {
	w, bit := i>>wordShift, uint64(1)<<(i&wordMask)
	if int(w) >= len(s.words) || s.words[w]&bit == 0 {
		return false
	}
	s.words[w] &^= bit
	s.n--
	if s.words[w] == 0 {
		s.summary[w>>wordShift] &^= 1 << (w & wordMask)
	}
	return true
}

// grow makes room for at least n words.
func (s *set) grow(n int) {
	n = max(n, len(s.words)+len(s.words)/4, 64)
	n = (n + wordMask) &^ wordMask
	words, summary := make([]uint64, n), make([]uint64, n>>wordShift)
	copy(words, s.words)
	copy(summary, s.summary)
	s.words, s.summary = words, summary
}

// next returns the smallest member that is at least from.
func (s *set) next(from uint32) (uint32, bool) {
	w := from >> wordShift
	if int(w) >= len(s.words) {
		return 0, false
	}
	if word := s.words[w] &^ (1<<(from&wordMask) - 1); word != 0 {
		return w<<wordShift | uint32(bits.TrailingZeros64(word)), true
	}
	w++
	for k := w >> wordShift; int(k) < len(s.summary); k++ {
		sum := s.summary[k]
		if k == w>>wordShift {
			sum &^= 1<<(w&wordMask) - 1
		}
		if sum != 0 {
			w = k<<wordShift | uint32(bits.TrailingZeros64(sum))
			return w<<wordShift | uint32(bits.TrailingZeros64(s.words[w])), true
		}
	}
	return 0, false
}

// union adds all members of other.
func (s *set) union(other *set) {
	if len(s.words) < len(other.words) {
		s.grow(len(other.words))
	}
	for k, sum := range other.summary {
		for ; sum != 0; sum &= sum - 1 {
			w := k<<wordShift | bits.TrailingZeros64(sum)
			s.n += bits.OnesCount64(other.words[w] &^ s.words[w])
			s.words[w] |= other.words[w]
		}
		s.summary[k] |= other.summary[k]
	}
}

// word returns the 64 bits of members from w*64; it is 0 beyond the end.
func (s *set) word(w int) uint64 {
	if w < len(s.words) {
		return s.words[w]
	}
	return 0
}
