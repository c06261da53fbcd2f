package spray

import (
	"testing"

	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

func TestGenerated(t *testing.T) {
	programs.Need(t, "clang-14", "llvm-strip-14")
	bpftest.Generated(t, "spray")
}
