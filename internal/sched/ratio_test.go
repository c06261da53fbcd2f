package sched

import "testing"

func TestRatio(t *testing.T) {
	paths := []Path{{Usable: true, Room: 1000, Ratio: 3}, {Usable: true, Room: 1000, Ratio: 2}}
	s, err := New("ratio", Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for range 10 {
		got += string(rune('0' + s.Next(paths, Segment{Size: 1000}).First()))
	}
	if want := "0001100011"; got != want {
		t.Errorf("3:2 goes over %s, want %s", got, want)
	}
}
