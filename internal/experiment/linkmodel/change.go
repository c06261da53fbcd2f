package linkmodel

import (
	"reflect"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/field"
	"github.com/tabane/tabane/internal/base/unit"
)

// Change is a change of a Profile: a field of the same name as that of a Profile, whose type is a
// pointer, replaces it as a whole. Nil fields do not change it.
type Change struct {
	// Rate is the rate from now on.
	// Example: 5Mbit/s
	Rate *unit.Bandwidth `yaml:"rate,omitempty" json:"rate,omitempty"`
	// Burst is what passes at once after a pause.
	// Example: 32kB
	Burst *unit.Size `yaml:"burst,omitempty" json:"burst,omitempty"`
	// Delay is the one-way delay from now on.
	// Example: 20ms
	Delay *time.Duration `yaml:"delay,omitempty" json:"delay,omitempty"`
	// Jitter varies the delay.
	Jitter *Jitter `yaml:"jitter,omitempty" json:"jitter,omitempty"`
	// Slot is how often frames are delivered, all together that have come since. Example: 4ms
	Slot *time.Duration `yaml:"slot,omitempty" json:"slot,omitempty"`
	// Loss is what the link loses.
	Loss *Loss `yaml:"loss,omitempty" json:"loss,omitempty"`
	// Duplicate is the probability that a frame arrives twice. Example: 0.001
	Duplicate *float64 `yaml:"duplicate,omitempty" json:"duplicate,omitempty"`
	// Queue is the queue in front of the link.
	Queue *Queue `yaml:"queue,omitempty" json:"queue,omitempty"`
	// Load is traffic of others.
	Load *Load `yaml:"load,omitempty" json:"load,omitempty"`
}

// Properties are the keys of a Change, in its order, as "rate, delay and queue" or, with the word
// empty, "rate, delay, queue".
func Properties(word string) string {
	keys := field.Keys[Change]()
	if word == "" {
		return strings.Join(keys, ", ")
	}
	last := len(keys) - 1
	return strings.Join(keys[:last], ", ") + " " + word + " " + keys[last]
}

// With returns the profile after the change.
func (p Profile) With(c Change) Profile {
	field.Copy(&p, c)
	return p
}

// Whole returns the change that replaces a whole profile by this one.
func (p Profile) Whole() Change {
	return p.change(func(reflect.StructField, reflect.Value) bool { return true })
}

// Since returns the change from another profile to this one.
func (p Profile) Since(other Profile) Change {
	from := reflect.ValueOf(other)
	return p.change(func(f reflect.StructField, v reflect.Value) bool { return !v.Equal(from.FieldByIndex(f.Index)) })
}

// change returns a change with the fields of the profile for which has returns true.
func (p Profile) change(has func(reflect.StructField, reflect.Value) bool) Change {
	var c Change
	from, to := reflect.ValueOf(&p).Elem(), reflect.ValueOf(&c).Elem()
	for _, f := range reflect.VisibleFields(from.Type()) {
		if v := from.FieldByIndex(f.Index); has(f, v) {
			to.FieldByName(f.Name).Set(v.Addr())
		}
	}
	return c
}
