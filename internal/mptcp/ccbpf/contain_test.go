package ccbpf

import (
	"slices"
	"strings"
	"testing"
)

// TestReturnedValues: only the programs whose values contain checks return any. A kernel may skip
// a program, and then takes what is on its stack: in place of the size of a send buffer, for one,
// that nothing can make smaller again.
func TestReturnedValues(t *testing.T) {
	known := []string{"init", "in_ack_event", "set_state", "cong_avoid", "cwnd_event", "pkts_acked", "ssthresh", "undo_cwnd"}
	for _, c := range controls {
		spec, err := c.spec()
		if err != nil {
			t.Fatal(err)
		}
		for name, p := range spec.Programs {
			if member, ok := strings.CutPrefix(p.AttachTo, "tcp_congestion_ops:"); !ok || !slices.Contains(known, member) {
				t.Errorf("%s: program %s is for %q, whose value is not contained", c.name, name, member)
			}
		}
	}
}
