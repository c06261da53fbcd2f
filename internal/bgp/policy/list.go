package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
)

// List is a prefix list: the first entry that matches a prefix decides, and a prefix that no entry
// matches is not accepted.
type List []Entry

// Entry is one entry of a prefix list. Its text is "accept PREFIX [ge LENGTH] [le LENGTH]" or
// "reject ...": it matches the prefixes inside PREFIX whose length is at least ge and at most le.
// Without both it matches PREFIX alone; with ge alone, up to the full length.
type Entry struct {
	Accept   bool
	Prefix   netip.Prefix
	Min, Max uint8
}

// UnmarshalText parses an entry. Errors say what is accepted.
func (e *Entry) UnmarshalText(text []byte) error {
	fields := strings.Fields(string(text))
	if len(fields) < 2 || len(fields)%2 != 0 || fields[0] != "accept" && fields[0] != "reject" {
		return fmt.Errorf(`want a prefix list entry like "accept 2001:db8::/32 ge 40 le 48" or "reject 2001:db8::/32", got %q`, text)
	}
	p, err := netip.ParsePrefix(fields[1])
	if err != nil || p != p.Masked() || p.Addr().Is4In6() {
		return fmt.Errorf("want an IP prefix without host bits, got %q", fields[1])
	}
	full := p.Addr().BitLen()
	made := Entry{Accept: fields[0] == "accept", Prefix: p, Min: uint8(p.Bits()), Max: uint8(p.Bits())}
	seen := map[string]bool{}
	for i := 2; i < len(fields); i += 2 {
		word := fields[i]
		n, err := strconv.ParseUint(fields[i+1], 10, 8)
		switch {
		case word != "ge" && word != "le":
			return fmt.Errorf("want ge or le after the prefix, got %q", word)
		case seen[word]:
			return fmt.Errorf("%s is given twice", word)
		case err != nil || int(n) < p.Bits() || int(n) > full:
			return fmt.Errorf("%s must be from %d to %d for %s, got %q", word, p.Bits(), full, p, fields[i+1])
		}
		seen[word] = true
		if word == "ge" {
			made.Min = uint8(n)
		} else {
			made.Max = uint8(n)
		}
	}
	if seen["ge"] && !seen["le"] {
		made.Max = uint8(full)
	}
	if made.Min > made.Max {
		return fmt.Errorf("matches nothing: ge %d is longer than le %d", made.Min, made.Max)
	}
	*e = made
	return nil
}

// MarshalText returns the text that UnmarshalText parses.
func (e Entry) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

func (e Entry) String() string {
	text := "reject "
	if e.Accept {
		text = "accept "
	}
	text += e.Prefix.String()
	bits, full := uint8(e.Prefix.Bits()), uint8(e.Prefix.Addr().BitLen())
	if e.Min > bits {
		text += fmt.Sprintf(" ge %d", e.Min)
	}
	if e.Max > bits && (e.Max < full || e.Min == bits) {
		text += fmt.Sprintf(" le %d", e.Max)
	}
	return text
}

// matches reports whether the entry matches p.
func (e Entry) matches(p netip.Prefix) bool {
	bits := uint8(p.Bits())
	return bits >= e.Min && bits <= e.Max && e.Prefix.Bits() <= p.Bits() && e.Prefix.Contains(p.Addr())
}

// shadows reports whether the entry matches everything that a later one does.
func (e Entry) shadows(later Entry) bool {
	return e.Prefix.Bits() <= later.Prefix.Bits() && e.Prefix.Contains(later.Prefix.Addr()) && e.Min <= later.Min && e.Max >= later.Max
}

// warnings reports the entries that no prefix reaches.
func (l List) warnings() fault.List {
	var faults fault.List
	c := compileList(l)
	for i, e := range l {
		first := i
		f := c.of(e.Prefix)
		for at := f.longest(e.Prefix); at >= 0; at = f.nodes[at].parent {
			from, to := f.valuesOf(at)
			for _, s := range c.entries[from:to] {
				if int(s.order) < first && l[s.order].shadows(e) {
					first = int(s.order)
				}
			}
		}
		if first < i {
			faults.Add(fmt.Sprintf("[%d]", i), "%q has no effect: entry [%d] %q matches all of it", e, first, l[first])
		}
	}
	return faults
}

// Index finds the first entry of a list that matches a prefix, whatever its action. It is immutable
// and safe for concurrent use.
type Index struct{ list *list }

// NewIndex indexes a list.
func NewIndex(l List) Index { return Index{compileList(l)} }

// First returns the position in the list of the first entry that matches p, or -1.
func (x Index) First(p netip.Prefix) int { return int(x.list.first(p).order) }

// list is a compiled List.
type list struct {
	index
	entries []listed // sorted by prefix
}

type listed struct {
	order    int32
	min, max uint8
	accept   bool
}

func compileList(l List) *list {
	order := make([]int32, len(l))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(i, j int32) int {
		return cmp.Or(comparePrefixes(l[i].Prefix, l[j].Prefix), cmp.Compare(i, j))
	})
	c := &list{entries: make([]listed, len(l))}
	for at, i := range order {
		c.entries[at] = listed{order: i, min: l[i].Min, max: l[i].Max, accept: l[i].Accept}
	}
	c.index = newIndex(order, func(i int32) netip.Prefix { return l[i].Prefix })
	return c
}

// accepts reports whether the first entry that matches p accepts it.
func (l *list) accepts(p netip.Prefix) bool { return l.first(p).accept }

// first returns the first entry that matches p; its order is -1 if there is none.
func (l *list) first(p netip.Prefix) listed {
	f := l.of(p)
	length := uint8(p.Bits())
	found := listed{order: -1}
	for at := f.longest(p); at >= 0; at = f.nodes[at].parent {
		from, to := f.valuesOf(at)
		for _, e := range l.entries[from:to] {
			if e.min <= length && length <= e.max && (found.order < 0 || e.order < found.order) {
				found = e
			}
		}
	}
	return found
}
