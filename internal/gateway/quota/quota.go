package quota

import (
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// Plan is what a line may carry in both directions together.
type Plan struct {
	// Volume is that of a month.
	Volume unit.Size
	// Day is the day of the month with which a new count begins, 1 to MaxDay; 0 is 1.
	Day int
}

// MaxDay is the last day that every month has.
const MaxDay = 28

// month returns when the month of the plan that has a time begins, on that time's calendar.
func (p Plan) month(t time.Time) time.Time {
	year, month, day := t.Date()
	first := max(p.Day, 1)
	if day < first {
		month--
	}
	return time.Date(year, month, first, 0, 0, 0, 0, t.Location())
}

// Ends returns when the month of the plan that has a time ends.
func (p Plan) Ends(t time.Time) time.Time { return p.month(t).AddDate(0, 1, 0) }

// warnPercent is the share of the volume from which on a line is nearly used up.
const warnPercent = 80

// Level says how much of a quota is used.
type Level uint8

const (
	// Fine: less than 80 %.
	Fine Level = iota
	// Low: 80 % or more.
	Low
	// Spent: all.
	Spent
)

func (l Level) String() string {
	switch l {
	case Low:
		return "low"
	case Spent:
		return "spent"
	case Fine:
	}
	return "fine"
}

// Level returns how much of the quota so many bytes use.
func (p Plan) Level(used uint64) Level {
	volume := uint64(max(p.Volume, 0))
	switch {
	case used >= volume:
		return Spent
	case used >= p.low():
		return Low
	}
	return Fine
}

// Next returns the bytes at which the level above that of so many begins, 0 if there is none.
func (p Plan) Next(used uint64) uint64 {
	switch p.Level(used) {
	case Fine:
		return p.low()
	case Low:
		return uint64(p.Volume)
	case Spent:
	}
	return 0
}

// low returns the bytes at which Low begins.
func (p Plan) low() uint64 {
	volume := uint64(max(p.Volume, 0))
	return volume/100*warnPercent + volume%100*warnPercent/100
}

// Account has what a line has carried. The zero value has nothing.
//
// A clock that is wrong for a while does not make the line carry more than its quota: what is
// carried while it is behind counts for the later months that are known, too, and what was carried
// while it was ahead counts for the month that it is set back to. A clock that is far behind all
// that is known is not set yet, and the current month goes on.
type Account struct {
	// Day is that of the plan that was counted for.
	Day int `json:"day"`
	// Months are the latest months that the clock has entered, the current one at the end.
	Months []Month `json:"months"`
}

// Month is what was carried in a month, in bytes. Begin is its first day, as 2006-01-02.
type Month struct {
	Begin string `json:"begin"`
	Bytes uint64 `json:"bytes"`
	// Ahead is the part of Bytes that counts for an earlier month as well if the clock is set back
	// to that.
	Ahead uint64 `json:"ahead"`
}

// keptMonths is how many months are kept: clocks that are not set show one or two wrong ones.
const keptMonths = 6

// current returns the current month, an empty one before the first.
func (a *Account) current() Month {
	if len(a.Months) == 0 {
		return Month{}
	}
	return a.Months[len(a.Months)-1]
}

// Used returns the bytes that were carried in the current month.
func (a *Account) Used() uint64 { return a.current().Bytes }

// Add counts bytes that were carried until now.
func (a *Account) Add(p Plan, now time.Time, bytes uint64) {
	begin := p.month(now).Format(time.DateOnly)
	if (begin != a.current().Begin || p.Day != a.Day) && !a.unset(begin) {
		a.enter(p.Day, begin)
	}
	a.count(bytes)
}

// firstMonth is before all months in which a set clock can be.
const firstMonth = "2026-01-01"

// unset reports whether a clock that shows a month is not set yet, as that of a host without a
// battery after each start: the month is more than one before all that are known, of which those
// before firstMonth are none.
func (a *Account) unset(begin string) bool {
	earliest := ""
	for _, m := range a.Months {
		if m.Begin >= firstMonth && (earliest == "" || m.Begin < earliest) {
			earliest = m.Begin
		}
	}
	t, err := time.Parse(time.DateOnly, earliest)
	return err == nil && begin < t.AddDate(0, -1, 0).Format(time.DateOnly)
}

// count adds bytes to the current month, and to later ones that are known.
func (a *Account) count(bytes uint64) {
	last := len(a.Months) - 1
	for i := range a.Months {
		if m := &a.Months[i]; m.Begin >= a.Months[last].Begin {
			m.Bytes = sum(m.Bytes, bytes)
		}
	}
	a.Months[last].Ahead = sum(a.Months[last].Ahead, bytes)
}

// enter has a month be the current one.
func (a *Account) enter(day int, begin string) {
	before, next := a.current(), Month{Begin: begin}
	if i := slices.IndexFunc(a.Months, func(m Month) bool { return m.Begin == begin }); i >= 0 {
		next = a.Months[i]
		a.Months = slices.Delete(a.Months, i, i+1)
	} else if before.Begin != "" && day != a.Day {
		next.Bytes = before.Bytes
	}
	a.Months = append(a.Months, next)
	a.Months = a.Months[max(0, len(a.Months)-keptMonths):]
	a.Day = day
	for i := range a.Months {
		if a.Months[i].Begin > begin {
			a.setBack(&a.Months[i])
		}
	}
}

// setBack has what was carried while the clock was ahead, in that month, count for those before it
// that are not before the current one, too.
func (a *Account) setBack(from *Month) {
	current := &a.Months[len(a.Months)-1]
	for i := range a.Months {
		if m := &a.Months[i]; m.Begin >= current.Begin && m.Begin < from.Begin {
			m.Bytes = sum(m.Bytes, from.Ahead)
		}
	}
	current.Ahead, from.Ahead = min(sum(current.Ahead, from.Ahead), current.Bytes), 0
}

// mostBytes bounds what is counted, so that sums do not overflow.
const mostBytes = 1 << 60

func sum(a, b uint64) uint64 { return min(a+min(b, mostBytes), mostBytes) }

// Reserve returns the account as if it had that many bytes more. A daemon that stores it so
// beforehand counts no byte too few when it is killed.
func (a *Account) Reserve(bytes uint64) Account {
	kept := Account{Day: a.Day, Months: slices.Clone(a.Months)}
	if len(kept.Months) > 0 {
		kept.count(bytes)
	}
	return kept
}
