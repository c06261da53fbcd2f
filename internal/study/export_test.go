package study

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/study/qoe"
	"github.com/tabane/tabane/internal/testkit/accessor"
)

func madeOutcome() Outcome {
	return Outcome{Participants: 3, Withdrawn: 1, Counted: true, Answers: []qoe.Answer{
		{Participant: "AAAA2222", Language: "en", Environment: "all", Transport: "tcp", Service: "map", Took: 31500 * time.Millisecond, Met: 2, Views: 1, Score: 4},
		{Participant: "AAAA2222", Language: "en", Position: 1, Environment: "all", Transport: "mptcp", Service: "map", Took: 0, Met: 3, Interrupted: true, Views: 2, Score: 5},
		{Participant: "BBBB3333", Language: "ja", Environment: "all", Transport: "mptcp", Service: "map", Took: 12 * time.Second, GaveUp: true, Views: 1},
	}}
}

func TestExport(t *testing.T) {
	want := madeOutcome()
	for name, write := range map[string]func(*bytes.Buffer) error{
		"json": func(b *bytes.Buffer) error { return want.WriteJSON(b) }, "csv": func(b *bytes.Buffer) error { return want.WriteCSV(b) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		got, err := ReadExport(&b)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		expected := want
		if name == "csv" { // it has answers alone
			expected.Participants, expected.Withdrawn, expected.Counted = 2, 0, false
		}
		if !reflect.DeepEqual(got, expected) {
			t.Errorf("%s: got %+v, want %+v", name, got, expected)
		}
	}
}

func TestReadExportRefuses(t *testing.T) {
	var b bytes.Buffer
	if err := madeOutcome().WriteCSV(&b); err != nil {
		t.Fatal(err)
	}
	good := b.String()
	b.Reset()
	if err := madeOutcome().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	whole := b.String()
	for want, text := range map[string]string{
		"first line":              "",
		"columns":                 strings.Replace(good, "rating", "stars", 1),
		"rating must be 1 to 5":   strings.Replace(good, "1,4\n", "1,6\n", 1),
		"line 2, rating":          strings.Replace(good, "1,4\n", "1,4.5\n", 1),
		"time_s must be":          strings.Replace(good, "31.500", "NaN", 1),
		"conditions_met must be":  strings.Replace(good, "31.500,2", "31.500,4", 1),
		"position must be":        strings.Replace(good, "en,0", "en,-1", 1),
		"language must be":        strings.Replace(good, "en,0", "fr,0", 1),
		"environment must be":     strings.Replace(good, "all,tcp", `"<b>",tcp`, 1),
		"wrong number of fields":  good + "AAAA\n",
		"something follows":       whole + "{}",
		"unknown field":           strings.Replace(whole, `"views"`, `"address": "x", "views"`, 1),
		"answers of 2 participan": strings.Replace(whole, `"participants": 3`, `"participants": 1`, 1),
		"must be >= 0":            strings.Replace(whole, `"withdrawn": 1`, `"withdrawn": -1`, 1),
	} {
		if _, err := ReadExport(strings.NewReader(text)); !errors.Is(err, ErrExport) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

func FuzzReadExport(f *testing.F) {
	for _, write := range []func(*bytes.Buffer) error{func(b *bytes.Buffer) error { return madeOutcome().WriteJSON(b) }, func(b *bytes.Buffer) error { return madeOutcome().WriteCSV(b) }} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := ReadExport(bytes.NewReader(data))
		if err != nil {
			return
		}
		accessor.Call(t, o)
		// What was read can be written and is read again as the same.
		var b bytes.Buffer
		if err := o.WriteJSON(&b); err != nil {
			t.Fatal(err)
		}
		again, err := ReadExport(&b)
		if err != nil {
			t.Fatalf("read again: %v", err)
		}
		if again.Counted = o.Counted; len(again.Answers) != len(o.Answers) || again.Participants != o.Participants {
			t.Fatalf("got %+v, want %+v", again, o)
		}
	})
}
