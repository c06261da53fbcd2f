package cli

import (
	"bytes"
	"strings"
	"testing"
)

// TestWithoutLaboratory: without the program tabane-lab, its verbs say how to get it.
func TestWithoutLaboratory(t *testing.T) {
	t.Setenv("PATH", "")
	for _, args := range [][]string{
		{"lab", "run", "epe-steady"}, {"help", "sim"}, {"load"}, {"check", "-c", "../../scenarios/epe-steady/scenario.yaml"},
	} {
		var out, err bytes.Buffer
		code := Run(t.Context(), Options{Args: args, Out: &out, Err: &err})
		if code != exitFailed || !strings.Contains(err.String(), "install the package tabane-lab") || strings.Count(err.String(), "\n") != 1 {
			t.Errorf("%q: exit code %d, %q", args, code, err.String())
		}
	}
}
