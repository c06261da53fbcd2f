// Package ablation describes the constants of decisions, so that an experiment can show what each
// of them is worth: with half of it, twice as much, and without it. Nothing else changes them.
package ablation

import (
	"strconv"
	"time"
)

// Constant is a constant of a decision.
type Constant struct {
	// Name is what the code calls it.
	Name string
	// without is the value that removes what the constant is for.
	without float64
	get     func() float64
	set     func(float64)
	text    func(float64) string
}

// Duration returns a constant that is a time. Experiments change v.
func Duration(name string, v *time.Duration, without time.Duration) Constant {
	return Constant{
		Name: name, without: float64(without),
		get: func() float64 { return float64(*v) }, set: func(x float64) { *v = time.Duration(x) },
		text: func(x float64) string { return time.Duration(x).String() },
	}
}

// Number returns a constant that is a number. Experiments change v.
func Number(name string, v *float64, without float64) Constant {
	return Constant{
		Name: name, without: without,
		get: func() float64 { return *v }, set: func(x float64) { *v = x },
		text: func(x float64) string { return strconv.FormatFloat(x, 'g', 3, 64) },
	}
}

// Integer returns a constant that is a whole number. Experiments change v.
func Integer[T ~int | ~int32 | ~int64 | ~uint8](name string, v *T, without T) Constant {
	return Constant{
		Name: name, without: float64(without),
		get: func() float64 { return float64(*v) }, set: func(x float64) { *v = T(x) },
		text: func(x float64) string { return strconv.FormatInt(int64(T(x)), 10) },
	}
}

// Text is its value.
func (c Constant) Text() string { return c.text(c.get()) }

// Variant is another value of a constant.
type Variant struct {
	Constant
	// Title says how it differs.
	Title string
	value float64
}

// Variants returns half of the constant, twice as much, and what removes it.
func (c Constant) Variants() []Variant {
	return []Variant{{c, "half", c.get() / 2}, {c, "double", c.get() * 2}, {c, "removed", c.without}}
}

// Text is the value of the variant.
func (v Variant) Text() string { return v.text(v.value) }

// Within reports whether its value is between that of the constant and that of another variant: a
// decision that is the same with both of these is the same with this one.
func (v Variant) Within(other Variant) bool {
	own := v.get()
	return own <= v.value && v.value <= other.value || other.value <= v.value && v.value <= own
}

// Apply gives the constant that value. Decisions must not run meanwhile. What it returns undoes it.
func (v Variant) Apply() (restore func()) {
	before := v.get()
	v.set(v.value)
	return func() { v.set(before) }
}
