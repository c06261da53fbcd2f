package ablation

import (
	"testing"
	"time"
)

func TestVariants(t *testing.T) {
	wait, share := 3*time.Second, 0.8
	for _, tt := range []struct {
		c    Constant
		want string
	}{
		{Duration("wait", &wait, 0), "3s: 1.5s 6s 0s"},
		{Number("share", &share, 1), "0.8: 0.4 1.6 1"},
	} {
		got := tt.c.Text() + ":"
		for _, v := range tt.c.Variants() {
			restore := v.Apply()
			got += " " + tt.c.Text()
			if tt.c.Text() != v.Text() {
				t.Errorf("%s %s: applied %s, want %s", tt.c.Name, v.Title, tt.c.Text(), v.Text())
			}
			restore()
		}
		if got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
	if wait != 3*time.Second || share != 0.8 {
		t.Errorf("%s and %v stay", wait, share)
	}
}

// TestWithin: half is between the value and 0, twice as much between the value and a larger one.
func TestWithin(t *testing.T) {
	least, most, middle := 8, 8, 8
	for _, tt := range []struct {
		c            Constant
		half, double bool
	}{
		{Integer("least", &least, 0), true, false}, {Integer("most", &most, 1<<20), false, true}, {Integer("middle", &middle, 9), false, false},
	} {
		v := tt.c.Variants()
		if half, double := v[0].Within(v[2]), v[1].Within(v[2]); half != tt.half || double != tt.double {
			t.Errorf("%s: half %t, double %t", tt.c.Name, half, double)
		}
	}
}
