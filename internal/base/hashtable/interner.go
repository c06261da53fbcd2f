package hashtable

// An Interner gives equal values one small number and counts its uses. Number 0 is the zero value,
// whose uses are not counted. The zero Interner is empty.
type Interner[T comparable] struct {
	items []interned[T]
	index map[T]uint32
	free  []uint32
	// last is the number of the last Use or Find: successive routes mostly have the same value.
	last uint32
}

type interned[T comparable] struct {
	value T
	uses  int
}

// Len returns a bound of the numbers: all are less.
func (t *Interner[T]) Len() int { return len(t.items) }

// Value returns the value of a number.
func (t *Interner[T]) Value(n uint32) T {
	if n == 0 {
		var zero T
		return zero
	}
	return t.items[n].value
}

// Last returns the value and number of the last Use or Find; number 0 if it is not in use any more.
func (t *Interner[T]) Last() (T, uint32) { return t.Value(t.last), t.last }

// Find returns the number of a value in use; ok is false if it is not.
func (t *Interner[T]) Find(v T) (n uint32, ok bool) {
	if t.last != 0 && t.items[t.last].value == v {
		return t.last, true
	}
	if n, ok = t.index[v]; ok {
		t.last = n
	}
	return n, ok
}

// Use returns the number of a value and counts a use.
func (t *Interner[T]) Use(v T) uint32 {
	if t.items == nil {
		t.items, t.index = make([]interned[T], 1), map[T]uint32{}
	}
	n, ok := t.Find(v)
	if !ok {
		if free := len(t.free); free > 0 {
			n, t.free = t.free[free-1], t.free[:free-1]
		} else {
			n, t.items = uint32(len(t.items)), append(t.items, interned[T]{})
		}
		t.items[n].value, t.index[v], t.last = v, n, n
	}
	t.items[n].uses++
	return n
}

// UseAgain counts another use of a number.
func (t *Interner[T]) UseAgain(n uint32) {
	if n != 0 {
		t.items[n].uses++
	}
}

// Release ends a use. The number of a value without uses is given to another one.
func (t *Interner[T]) Release(n uint32) {
	if n == 0 {
		return
	}
	item := &t.items[n]
	if item.uses--; item.uses > 0 {
		return
	}
	delete(t.index, item.value)
	*item = interned[T]{}
	t.free = append(t.free, n)
	if t.last == n {
		t.last = 0
	}
}

// Uses returns the number of uses.
func (t *Interner[T]) Uses(n uint32) int { return t.items[n].uses }
