package stat

import "time"

// Peak is the largest of the times that were added within the last half to whole Memory. The zero
// value has none.
type Peak struct {
	value, before time.Duration // of this and of the previous half
	begun         time.Duration
}

// Memory is how long a Peak remembers.
const Memory = 10 * time.Second

// Add takes a value at a time.
func (p *Peak) Add(now, v time.Duration) {
	p.Age(now)
	p.value = max(p.value, v)
}

// Age forgets what is too old.
func (p *Peak) Age(now time.Duration) {
	switch passed := now - p.begun; {
	case passed < Memory/2:
		return
	case passed < Memory:
		p.before = p.value
	default:
		p.before = 0
	}
	p.value, p.begun = 0, now
}

// Value returns the largest value, as of the last call of Add or Age.
func (p *Peak) Value() time.Duration { return max(p.value, p.before) }
