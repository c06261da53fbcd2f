package linkmodel

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/base/field"
)

// other returns a profile all of whose properties differ from those of the zero value.
func other(t *testing.T) Profile {
	t.Helper()
	var p Profile
	fill(t, reflect.ValueOf(&p).Elem())
	return p
}

func fill(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(time.Second))
	case reflect.Uint64:
		v.SetUint(1000)
	case reflect.Float64:
		v.SetFloat(0.5)
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	default:
		t.Fatalf("cannot fill a %s", v.Type())
	}
}

// TestEveryPropertyChanges: a property of a profile has a key of the same name in a change.
func TestEveryPropertyChanges(t *testing.T) {
	if diff := cmp.Diff(field.Keys[Profile](), field.Keys[Change]()); diff != "" {
		t.Errorf("keys of a profile and of a change (-profile +change):\n%s", diff)
	}
	p := other(t)
	for name, c := range map[string]Change{"whole": p.Whole(), "since": p.Since(Profile{})} {
		if diff := cmp.Diff(p, Profile{}.With(c)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if diff := cmp.Diff(Profile{}, p.With(Profile{}.Whole())); diff != "" {
		t.Errorf("the zero profile replaces nothing:\n%s", diff)
	}
	if c := p.Since(p); c != (Change{}) {
		t.Errorf("%+v between equal profiles", c)
	}
	one := p
	one.Delay = time.Minute
	if c := one.Since(p); c.Delay == nil || *c.Delay != time.Minute || c.Rate != nil || c.Queue != nil {
		t.Errorf("one property differs: %+v", c)
	}
	if got, want := Properties("and"), "rate, burst, delay, jitter, slot, loss, duplicate, queue and load"; got != want {
		t.Errorf("properties %q, want %q", got, want)
	}
}
