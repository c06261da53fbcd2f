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
