package fault

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestJoin(t *testing.T) {
	for _, tt := range []struct{ prefix, sub, want string }{
		{"edge", "peers[0].rt", "edge.peers[0].rt"},
		{"peers", "[0].rt", "peers[0].rt"},
		{"peers[2]", "asn", "peers[2].asn"},
		{"", "asn", "asn"},
		{"edge", "", "edge"},
		{"", "", ""},
	} {
		if got := Join(tt.prefix, tt.sub); got != tt.want {
			t.Errorf("Join(%q, %q) = %q, want %q", tt.prefix, tt.sub, got, tt.want)
		}
	}
}

func TestListPrintsOnePerLineInOrder(t *testing.T) {
	var peer List
	peer.Add("rt", "duplicate of %s", "peers[1].rt")
	peer.Add("", "has no address")
	var l List
	l.Add("asn", "must be > 0, got %d", 0)
	l.Merge("peers[2]", peer)
	l.Merge("unused", nil)
	l.Add("", "nothing to do")

	want := "asn: must be > 0, got 0\npeers[2].rt: duplicate of peers[1].rt\npeers[2]: has no address\nnothing to do"
	if diff := cmp.Diff(want, l.Err().Error()); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}

func TestErrIsNilWhenNothingIsWrong(t *testing.T) {
	var l List
	if err := l.Err(); err != nil {
		t.Errorf("empty list: Err() = %v, want nil", err)
	}
	if err := (List{}).Err(); err != nil {
		t.Errorf("empty non-nil list: Err() = %v, want nil", err)
	}
}

func TestErrDoesNotChangeAfterwards(t *testing.T) {
	l := make(List, 0, 4)
	l.Add("a", "first")
	err := l.Err()
	l.Add("b", "second")
	l[0].Message = "changed"
	if got, want := err.Error(), "a: first"; got != want {
		t.Errorf("error = %q, want %q", got, want)
	}
}

func TestErrorsAs(t *testing.T) {
	var l List
	l.Add("a", "first")
	l.Add("b", "second")
	err := fmt.Errorf("read config %q: %w", "x.yaml", l.Err())

	var list List
	if !errors.As(err, &list) || len(list) != 2 {
		t.Errorf("errors.As(List) = %v, want both faults", list)
	}
	var one Fault
	if !errors.As(err, &one) || one.Path != "a" {
		t.Errorf("errors.As(Fault) = %v, want the first fault", one)
	}
	if !errors.Is(err, Fault{Path: "b", Message: "second"}) {
		t.Error("errors.Is does not find the second fault")
	}
}

func TestMessageIsNotAFormatTwice(t *testing.T) {
	var l List
	l.Add("name", "%s", "100%d")
	if got, want := l.Error(), "name: 100%d"; got != want {
		t.Errorf("list = %q, want %q", got, want)
	}
}
