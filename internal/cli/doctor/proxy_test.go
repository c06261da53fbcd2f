package doctor

import (
	"errors"
	"strings"
	"testing"
)

func TestDescriptors(t *testing.T) {
	for limit, want := range map[uint64]State{20_000: Limited, 1 << 20: OK} {
		f := descriptors(func() (uint64, error) { return limit, nil })
		if f.State != want || (f.Remedy == "") != (want == OK) {
			t.Errorf("limit %d: %+v", limit, f)
		}
	}
	if f := descriptors(func() (uint64, error) { return 20_000, nil }); !strings.Contains(f.Meaning, "9900 connections") {
		t.Errorf("meaning is %q", f.Meaning)
	}
	if f := descriptors(func() (uint64, error) { return 0, errors.New("no") }); f.State != Unknown {
		t.Errorf("unknown limit: %+v", f)
	}
}

// TestBounded: what is missing is reported where the host has cubic and nothing else was chosen.
func TestBounded(t *testing.T) {
	for _, c := range []struct {
		host string
		may  bool
		want State
	}{{"", false, Unknown}, {"bbr", false, OK}, {"cubic", true, OK}, {"cubic", false, Limited}} {
		f := bounded(func(string) (string, bool) { return c.host, c.may })
		if f.State != c.want || f.Meaning == "" || (f.Remedy != "") != (c.want == Limited) {
			t.Errorf("host %q, loaded %v: %+v", c.host, c.may, f)
		}
	}
}
