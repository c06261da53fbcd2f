package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/cli/files"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/sim/simrun"
)

// TestOwnTopology simulates the file of docs/own.md: it is complete, and MPTCP uses both ways.
func TestOwnTopology(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/own.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	f, err := files.Parse("mine.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r, err := simrun.Run(t.Context(), simrun.Options{Spec: f.Scenario})
	if err != nil {
		t.Fatal(err)
	}
	goodput := func(transport string) float64 {
		c, ok := r.Find(result.CellKey{Case: "one", Traffic: "bulk", Transport: transport}, result.Goodput)
		if !ok {
			t.Fatalf("no goodput of %s", transport)
		}
		return c.Mean / 1e6
	}
	if tcp, mptcp := goodput("tcp"), goodput("mptcp"); tcp < 8 || tcp > 10 || mptcp < 12 || mptcp > 15 {
		t.Errorf("tcp has %.1f Mbit/s of 10, mptcp %.1f of 15", tcp, mptcp)
	}
}
