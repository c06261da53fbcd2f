package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestStatusMetrics(t *testing.T) {
	type common struct {
		Ready bool `json:"ready"`
	}
	status := struct {
		Role string `json:"role"`
		common
		Pending  int `json:"pending"`
		Sessions []struct {
			Neighbor string `json:"neighbor"`
			Up       bool   `json:"up"`
			Retained int    `json:"retained,omitempty"`
			Reason   string `json:"reason"`
		} `json:"sessions"`
		Peers []struct {
			Name     string            `json:"name"`
			Routes   int               `json:"routes"`
			SIDs     []string          `json:"sids"`
			Rejected map[string]uint64 `json:"rejected"`
		} `json:"peers"`
		Refused map[string]uint64 `json:"refused"`
		Paths   struct {
			Manager  string `json:"manager"`
			Subflows int    `json:"subflows"`
			Stalls   uint64 `json:"stalls"`
			Waiting  struct {
				Connections int    `json:"connections"`
				Meaning     string `json:"meaning"`
			} `json:"waiting,omitzero"`
			Unjoined struct {
				Connections int `json:"connections"`
			} `json:"unjoined,omitzero"`
		} `json:"paths"`
	}{}
	err := json.Unmarshal([]byte(`{
		"role": "edge", "pending": 2, "sessions": [{"neighbor": "reflector fc00::1", "reason": "connection lost"}],
		"peers": [{"name": "a", "routes": 3, "sids": ["fc00::1"], "rejected": {"bogon": 5}}, {"name": "b"}],
		"refused": {"no-rt": 4}, "paths": {"manager": "user", "subflows": 6, "stalls": 7, "waiting": {"connections": 8, "meaning": "x"}}
	}`), &status)
	if err != nil {
		t.Fatal(err)
	}
	status.Ready = true
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(statusMetrics{func() any { return status }})
	const want = `
# HELP tabane_paths As paths of /status.
# TYPE tabane_paths gauge
tabane_paths{kind="subflows"} 6
# HELP tabane_paths_total As paths of /status.
# TYPE tabane_paths_total counter
tabane_paths_total{kind="stalls"} 7
# HELP tabane_paths_waiting As paths_waiting of /status.
# TYPE tabane_paths_waiting gauge
tabane_paths_waiting{kind="connections"} 8
# HELP tabane_peer_rejected_total As peer_rejected of /status.
# TYPE tabane_peer_rejected_total counter
tabane_peer_rejected_total{kind="bogon",peer="a"} 5
# HELP tabane_peer_routes As peer_routes of /status.
# TYPE tabane_peer_routes gauge
tabane_peer_routes{peer="a"} 3
tabane_peer_routes{peer="b"} 0
# HELP tabane_pending As pending of /status.
# TYPE tabane_pending gauge
tabane_pending 2
# HELP tabane_ready As ready of /status.
# TYPE tabane_ready gauge
tabane_ready 1
# HELP tabane_refused_total As refused of /status.
# TYPE tabane_refused_total counter
tabane_refused_total{kind="no-rt"} 4
# HELP tabane_session_up As session_up of /status.
# TYPE tabane_session_up gauge
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
