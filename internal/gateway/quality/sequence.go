package quality

// Sequence counts the arrivals of numbered packets. The zero value is ready; numbers begin with 0,
// and memory grows by a bit for each number, so that callers bound them.
type Sequence struct {
	// Received counts all arrivals, Duplicates those of a number that had arrived before. Reordered
	// counts packets that arrived after one with a higher number (RFC 4737 section 3.3), Behind is
	// by how many numbers at most.
	Received, Duplicates, Reordered, Behind uint64

	// next is the number after the highest one that arrived, seen has a bit for each number.
	next uint64
	seen []uint64
}

// Add counts an arrival and reports whether it is the first one of its number.
func (s *Sequence) Add(number uint64) (fresh bool) {
	s.Received++
	for number/64 >= uint64(len(s.seen)) {
		s.seen = append(s.seen, 0)
	}
	if word, bit := &s.seen[number/64], uint64(1)<<(number%64); *word&bit != 0 {
		s.Duplicates++
		return false
	} else {
		*word |= bit
	}
	if number < s.next {
		s.Reordered++
		s.Behind = max(s.Behind, s.next-1-number)
	}
	s.next = max(s.next, number+1)
	return true
}

// Unique is how many different numbers have arrived.
func (s *Sequence) Unique() uint64 { return s.Received - s.Duplicates }
