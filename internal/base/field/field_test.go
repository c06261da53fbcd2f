package field

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/base/unit"
)

type inner struct {
	N int      `yaml:"n"`
	P *float64 `yaml:"p"`
}

type short struct {
	Word string `yaml:"word"`
}

func (s *short) ParseShort(text string) error {
	if text == "bad" {
		return errors.New("is bad")
	}
	s.Word = text
	return nil
}

func (s *short) Short() (string, bool) { return s.Word, true }

type outer struct {
	Rate  unit.Bandwidth `yaml:"rate"`
	After time.Duration  `yaml:"after"`
	On    *bool          `yaml:"on"`
	In    *inner         `yaml:"in"`
	Deep  struct {
		In inner `yaml:"in"`
	} `yaml:"deep"`
	S      short             `yaml:"s"`
	Ignore map[string]string `yaml:"ignore"`
	inner
	Same `yaml:",inline"`
}

// Same is inlined.
type Same struct {
	Flat uint16 `yaml:"flat"`
}

func TestPaths(t *testing.T) {
	want := []string{"rate", "after", "on", "in.n", "in.p", "deep.in.n", "deep.in.p", "s", "s.word", "flat"}
	if diff := cmp.Diff(want, Paths[outer]()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSet(t *testing.T) {
	var o outer
	for _, a := range []string{"rate=3kbit/s", "after=5ms", "on=false", "in.n=-4", "in.p=1e-3", "deep.in.p=50%", "s=x", "flat=65535"} {
		path, text, _ := strings.Cut(a, "=")
		if err := Set(&o, path, text); err != nil {
			t.Fatal(err)
		}
	}
	if o.Rate != 3000 || o.After != 5*time.Millisecond || *o.On || o.In.N != -4 || *o.In.P != 0.001 || *o.Deep.In.P != 0.5 || o.S.Word != "x" || o.Flat != 65535 {
		t.Errorf("%+v", o)
	}
	var again outer
	for _, a := range Assignments(&o) {
		path, text, _ := strings.Cut(a, "=")
		if err := Set(&again, path, text); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(o, again) {
		t.Errorf("%q", Assignments(&o))
	}
	shared := o
	if err := Set(&o, "in.n", "9"); err != nil || shared.In.N != -4 || o.In.N != 9 {
		t.Errorf("shared %+v, %v", shared.In, err)
	}
	Clear(&o, "in.p")
	Clear(&o, "deep")
	if o.In.P != nil || o.Deep.In.P != nil || shared.In.P == nil {
		t.Errorf("%+v of %+v", o.In, shared.In)
	}
}

func TestSetRefuses(t *testing.T) {
	for a, want := range map[string]string{
		"rate=": "want a bandwidth", "rate=0bit/s": "must be > 0", "rate=5": "has no unit", "after=5": "want a duration", "on=yes": "want true or false", "in.n=010": "whole number",
		"in.n=+1": "whole number", "in.n=1.0": "whole number", "in.p=NaN": "want a number", "in.p=0x1p-2": "want a number", "in.p=1e-3%%": "want a number", "in.p=Inf": "want a number",
		"in.p=+1": "want a number", "in.p=1_0": "want a number", "s=bad": "is bad", "flat=65536": "from 0 to 65535", "flat=-1": "from 0 to 65535", "in.q=1": "unknown key",
		"rate.x=1": "no keys below", "rote=1": `did you mean "rate"?`,
	} {
		o, before := outer{}, outer{}
		path, text, _ := strings.Cut(a, "=")
		if err := Set(&o, path, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", a, err, want)
		}
		o.In = nil
		if !reflect.DeepEqual(o, before) {
			t.Errorf("%s: changed to %+v", a, o)
		}
	}
}

func TestNumbersMeanTheSame(t *testing.T) {
	for _, text := range []string{"0.001", "1e-3", "0.1%", "1E-3", "10e-2%"} {
		if p, err := Probability(text); err != nil || p != 0.001 {
			t.Errorf("%s is %v, %v", text, p, err)
		}
	}
	for _, text := range []string{"1.1", "-0.1", "101%", "", "%", "x"} {
		if p, err := Probability(text); err == nil {
			t.Errorf("%q is %v", text, p)
		}
	}
}
