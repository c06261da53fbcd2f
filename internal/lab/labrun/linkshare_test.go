package labrun

import (
	"strings"
	"testing"
)

// TestElsewhere: a run whose data was not on the links of its transport fails and says where it
// was.
func TestElsewhere(t *testing.T) {
	for _, tt := range []struct {
		links   []string
		carried map[string]uint64
		want    string
	}{
		{[]string{"path1"}, map[string]uint64{"path1": 1_050_000, "lan": 1_050_000}, ""},
		{[]string{"path1", "path2"}, map[string]uint64{"path1": 600_000, "path2": 500_000}, ""},
		{nil, map[string]uint64{"path1": 1_050_000}, ""},
		{[]string{"path1"}, map[string]uint64{"path1": 900, "alpha": 1_050_000, "lan": 1_050_000}, "900B of 1000000B were on the links of the transport (path1); link alpha carried 1050kB"},
		{[]string{"path1"}, map[string]uint64{"path1": 900, "lan": 10}, "900B of 1000000B were on the links of the transport (path1)"},
	} {
		got := ""
		if err := elsewhere(1_000_000, tt.links, tt.carried); err != nil {
			got = err.Error()
		}
		if (tt.want == "") != (got == "") || !strings.HasPrefix(strings.ReplaceAll(got, "1MB", "1000000B"), tt.want) {
			t.Errorf("carried %v: %q, want %q", tt.carried, got, tt.want)
		}
	}
}
