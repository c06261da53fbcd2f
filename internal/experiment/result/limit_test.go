package result

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPutLeavesOutWhatThereIsNot(t *testing.T) {
	m := map[string]float64{Goodput: 1}
	Limits{Links: 2, LinksTCP: 3}.Put(m)
	if diff := cmp.Diff(map[string]float64{Goodput: 1, LimitRate: 2, LimitTCPRate: 3}, m); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}
