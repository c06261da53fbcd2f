package rib

import (
	"slices"

	"github.com/tabane/tabane/internal/bgp/message"
)

// urgentMax is the number of urgent destinations that are taken before others; further ones are
// taken with the others.
const urgentMax = 1024

// Consumer takes the routes of a family, either the best paths or the paths of one source.
type Consumer struct {
	table *table
	// of is the source whose paths it takes; best: it takes the best paths.
	of   Source
	best bool
	wake func()

	// pending are the destinations to take, held those that the consumer has a route to.
	pending, held set
	urgent        []uint32
	cursor        uint32
	rounds        uint64 // how often the cursor started again
}

// NewConsumer returns a consumer of the best paths of a family. A path that differs only in its
// attributes as received, of which the import policy makes the same, is not taken again. wake is
// called when it has something to take after it had nothing; it must not use the RIB.
func (r *RIB) NewConsumer(f message.Family, wake func()) *Consumer {
	t := &r.tables[f]
	c := &Consumer{table: t, best: true, wake: wake}
	t.consumers = append(t.consumers, c)
	c.MarkAll()
	return c
}

// NewReader returns a consumer of the paths of a source.
func (r *RIB) NewReader(f message.Family, s Source, wake func()) *Consumer {
	t := &r.tables[f]
	c := &Consumer{table: t, of: s, wake: wake}
	t.from[s].readers = append(t.from[s].readers, c)
	c.MarkAll()
	return c
}

// Close ends the use of a consumer.
func (c *Consumer) Close() {
	list := &c.table.consumers
	if !c.best {
		list = &c.table.from[c.of].readers
	}
	*list = slices.DeleteFunc(*list, func(other *Consumer) bool { return other == c })
}

// MarkAll marks all destinations that the consumer may take. Those that it has a route to are among
// them, or marked already.
func (c *Consumer) MarkAll() {
	was := c.pending.n
	if c.best {
		c.pending.union(&c.table.live)
	} else {
		c.pending.union(&c.table.from[c.of].in)
	}
	if was == 0 && c.pending.n > 0 {
		c.wake()
	}
}

// Mark marks one destination; it has no effect on an unknown one.
func (c *Consumer) Mark(k message.Key) {
	if i, ok := c.table.lookup(k); ok {
		c.mark(i, true)
	}
}

func (c *Consumer) mark(i uint32, urgent bool) {
	added := c.pending.add(i)
	if urgent && len(c.urgent) < urgentMax {
		c.urgent = append(c.urgent, i)
	}
	if added && c.pending.n == 1 {
		c.wake()
	}
}

// Pending returns the number of destinations to take.
func (c *Consumer) Pending() int { return c.pending.n }

// Urgent reports whether an urgent destination is to be taken.
func (c *Consumer) Urgent() bool { return len(c.urgent) > 0 }

// Held returns the number of destinations that the consumer has a route to.
func (c *Consumer) Held() int { return c.held.n }

// Barrier is a point in the order of changes.
type Barrier struct {
	rounds uint64
	cursor uint32
}

// Barrier returns the current point: Passed reports when the consumer has taken all changes before
// it.
func (c *Consumer) Barrier() Barrier { return Barrier{c.rounds, c.cursor} }

// Passed reports whether the consumer has taken all changes before the barrier.
func (c *Consumer) Passed(b Barrier) bool {
	return c.pending.n == 0 || c.rounds > b.rounds+1 || c.rounds == b.rounds+1 && c.cursor >= b.cursor
}

// Item is a destination that a consumer takes.
type Item struct {
	Key message.Key
	// Number is that of the destination in its family, as long as the consumer has a route to it.
	Number uint32
	// Path is the best path, or that of the source; Received is 0 if there is none.
	Path Path
	// Held: the consumer has a route to the destination.
	Held bool
}

// Pull takes up to n destinations, urgent ones first, and calls take for each, which reports
// whether the consumer has a route to the destination now. It returns the number of destinations
// taken.
func (c *Consumer) Pull(n int, take func(Item) (held bool)) int {
	taken := c.PullUrgent(n, take)
	for ; taken < n && c.pending.n > 0; taken++ {
		i, ok := c.pending.next(c.cursor)
		if !ok {
			c.rounds++
			i, _ = c.pending.next(0)
		}
		c.cursor = i + 1
		c.take(i, take)
	}
	if taken > 0 && c.pending.n == 0 {
		c.table.reap(n)
	}
	return taken
}

// PullUrgent is Pull for urgent destinations only.
func (c *Consumer) PullUrgent(n int, take func(Item) (held bool)) int {
	taken := 0
	for len(c.urgent) > 0 && taken < n {
		i := c.urgent[0]
		if c.urgent = c.urgent[1:]; len(c.urgent) == 0 {
			c.urgent = nil
		}
		if c.pending.has(i) {
			c.take(i, take)
			taken++
		}
	}
	return taken
}

func (c *Consumer) take(i uint32, take func(Item) bool) {
	c.pending.remove(i)
	item := Item{Key: c.table.key(i), Number: i, Held: c.held.has(i)}
	if c.best {
		item.Path = c.table.best(i)
	} else if p := c.table.find(i, c.of); p != nil {
		item.Path = *p
	}
	switch held := take(item); {
	case held && !item.Held:
		c.held.add(i)
	case !held && item.Held:
		c.held.remove(i)
	}
	c.table.reapIfDue()
}

// Each calls f for each destination from the given index that the consumer has a route to, up to n
// of them, with the state of the destination now. It returns the index to continue with, or 0 after
// the last one.
func (c *Consumer) Each(from uint32, n int, f func(Item)) (next uint32) {
	for ; n > 0; n-- {
		i, ok := c.held.next(from)
		if !ok {
			return 0
		}
		f(Item{Key: c.table.key(i), Number: i, Held: true, Path: c.table.best(i)})
		from = i + 1
	}
	return from
}
