package edge

import (
	"strings"
	"testing"
)

func TestPathManager(t *testing.T) {
	for _, tt := range []struct {
		paths Paths
		want  PathManager
		fault string
	}{
		{Paths{}, UserPathManager, ""},
		{Paths{PathManager: UserPathManager}, UserPathManager, ""},
		{Paths{PathManager: KernelPathManager}, KernelPathManager, ""},
		{Paths{MPTCP: MPTCP{Subflows: 4}}, KernelPathManager, ""},
		{Paths{PathManager: UserPathManager, MPTCP: MPTCP{Subflows: 4}}, UserPathManager, `mptcp.path_manager: "user" has no limits`},
		{Paths{PathManager: "third"}, "third", `mptcp.path_manager: must be "user" or "kernel", got "third"`},
		{Paths{BestPath: BackupBestPath}, UserPathManager, ""},
		{Paths{PathManager: KernelPathManager, BestPath: SharingBestPath}, KernelPathManager, ""},
		{Paths{MPTCP: MPTCP{Subflows: 4}, BestPath: BackupBestPath}, KernelPathManager, `mptcp.best_path: "backup" needs path_manager: "user", without limits`},
		{Paths{BestPath: "third"}, UserPathManager, `mptcp.best_path: must be "backup" or "share", got "third"`},
		{Paths{MPTCP: MPTCP{Subflows: 9}}, KernelPathManager, "mptcp.subflows: must be at most 8, got 9"},
	} {
		c := testConfig()
		c.MPTCP = tt.paths
		if got := c.MPTCP.manager(); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.paths, got, tt.want)
		}
		err := c.Check().Err()
		if (err == nil) != (tt.fault == "") || err != nil && !strings.Contains(err.Error(), tt.fault) {
			t.Errorf("%+v: %v, want %q", tt.paths, err, tt.fault)
		}
	}
}
