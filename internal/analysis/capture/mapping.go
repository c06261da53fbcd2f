package capture

import (
	"math"
	"slices"
	"sort"
)

// mapping maps the bytes [start, end) of a subflow, relative to its initial sequence number, to
// data sequence numbers.
type mapping struct {
	start, end uint64
	dsn        uint64
	signed     signed
}

// maxMappings limits the unused mappings of one subflow: at 64 kB each they exceed any window.
const maxMappings = 1 << 16

// mappings holds the mappings of one direction of a subflow, sorted and without overlap.
type mappings struct {
	list []mapping
	head int // those before it are used up
}

func (m *mappings) all() []mapping { return m.list[m.head:] }

// outcome is the result of adding a mapping.
type outcome uint8

const (
	repeated outcome = iota // it is a duplicate
	added
	conflicting // it contradicts another
	refused     // there are too many
)

// add adds a mapping. Segmentation offload copies it to several segments, so duplicates are normal.
func (m *mappings) add(v mapping) outcome {
	all := m.all()
	n := len(all)
	if n > 0 && v.start < all[n-1].end {
		i := sort.Search(n, func(i int) bool { return all[i].end > v.start })
		o := all[i]
		switch {
		case o.start <= v.start && v.end <= o.end && v.dsn-o.dsn == v.start-o.start:
			return repeated
		case o.start < v.end:
			return conflicting
		}
		m.list = slices.Insert(m.list, m.head+i, v)
		return added
	}
	if n >= maxMappings {
		return refused
	}
	if m.head > 64 && m.head > len(m.list)/2 {
		m.list = slices.Delete(m.list, 0, m.head)
		m.head = 0
	}
	m.list = append(m.list, v)
	return added
}

// find returns the mapping of the byte at position at or, if there is none, the start of the next
// mapping; next is MaxUint64 if there is none.
func (m *mappings) find(at uint64) (v mapping, next uint64, ok bool) {
	all := m.all()
	i := 0
	if len(all) > 0 && all[0].end <= at {
		i = sort.Search(len(all), func(i int) bool { return all[i].end > at })
	}
	if i == len(all) {
		return mapping{}, math.MaxUint64, false
	}
	if all[i].start > at {
		return mapping{}, all[i].start, false
	}
	return all[i], 0, true
}

// prune removes mappings below before. It keeps the last one, to recognize its duplicates.
func (m *mappings) prune(before uint64) {
	for len(m.list)-m.head > 1 && m.list[m.head].end <= before {
		m.head++
	}
}
