package ccbpf

import (
	"testing"

	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
	"github.com/tabane/tabane/internal/mptcp/cc"
	"github.com/tabane/tabane/internal/testkit/programs"
)

func TestGenerated(t *testing.T) {
	programs.Need(t, "clang-14", "llvm-strip-14")
	bpftest.Generated(t, "ccbpf")
}

// TestReference: each control has a row in the table of scenarios, and the arithmetic that its
// vectors are compared with. Ratio has neither: only egress policies set its rates.
func TestReference(t *testing.T) {
	for _, name := range Names() {
		if _, err := cc.New(name); name != Ratio && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
