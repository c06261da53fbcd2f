package cli

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestStatusMetrics(t *testing.T) {
	status := map[string]any{
		"role": "edge", "ready": true, "pending": 2,
		"sessions": []map[string]any{{"neighbor": "reflector fc00::1", "up": false, "reason": "connection lost"}},
		"peers":    []map[string]any{{"name": "a", "routes": 3, "sids": []string{"fc00::1"}, "rejected": map[string]int{"bogon": 5}}, {"name": "b", "routes": 0}},
		"refused":  map[string]int{"no-rt": 4},
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(statusMetrics{func() any { return status }})
	const want = `
# HELP tabane_peer_rejected As peer_rejected of /status.
# TYPE tabane_peer_rejected untyped
tabane_peer_rejected{kind="bogon",peer="a"} 5
# HELP tabane_peer_routes As peer_routes of /status.
# TYPE tabane_peer_routes untyped
tabane_peer_routes{peer="a"} 3
tabane_peer_routes{peer="b"} 0
# HELP tabane_pending As pending of /status.
# TYPE tabane_pending untyped
tabane_pending 2
# HELP tabane_ready As ready of /status.
# TYPE tabane_ready untyped
tabane_ready 1
# HELP tabane_refused As refused of /status.
# TYPE tabane_refused untyped
tabane_refused{kind="no-rt"} 4
# HELP tabane_session_up As session_up of /status.
# TYPE tabane_session_up untyped
tabane_session_up{neighbor="reflector fc00::1"} 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestStatusThatCannotBeRead(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(statusMetrics{func() any { return func() {} }})
	if _, err := registry.Gather(); err == nil {
		t.Error("a status that is no JSON was gathered")
	}
}
