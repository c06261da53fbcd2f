package acceptance

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tabane/tabane/internal/experiment/result"
)

// TestModesInALab: a lab has the server deliver in the mode of each transport, and nothing of a
// mode that learned or sprayed is left for the next one.
func TestModesInALab(t *testing.T) {
	needLab(t)
	t.Parallel()
	out := t.TempDir()
	cmd := exec.Command(program, "lab", "run", "../../scenarios/epe-clients/scenario.yaml", "--quick", "--case", "unequal", "--traffic", "bulk", "--transport", "tcp,tcp-single,tcp-spray,tcp-auto", "--jobs", "1", "--out", out)
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) { // expectations are for hosts that do nothing else
		t.Fatalf("%v\n%s", err, text)
	}
	b, err := os.ReadFile(filepath.Join(out, "result.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r result.Result
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	goodput := map[string]float64{}
	for _, run := range r.Runs {
		if err := run.Err(); err != nil {
			t.Errorf("%v: %v", run.CellKey, err)
		}
		goodput[run.Transport] = run.Metrics[result.Goodput]
	}
	// Paths of 10 and 30 Mbit/s. What spray gains on a host that does other things is not certain.
	if len(r.Runs) != 4 || goodput["tcp-single"] < 1.5*goodput["tcp"] || goodput["tcp-spray"] < 0.8*goodput["tcp"] || goodput["tcp-auto"] < 0.8*goodput["tcp"] {
		t.Errorf("%d runs, %v\n%s", len(r.Runs), goodput, text)
	}
}
