package cli

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// statusMetrics gives every number of a machine's status to Prometheus, so that /status and /metrics cannot disagree:
//
//	{"ready": true}                                tabane_ready 1
//	{"sessions": [{"neighbor": "a", "up": true}]}  tabane_session_up{neighbor="a"} 1
//	{"peers": [{"name": "a", "routes": 3}]}        tabane_peer_routes{peer="a"} 3
//	{"refused": {"no-rt": 2}}                      tabane_refused{kind="no-rt"} 2
//	{"peers": [{"name": "a", "rejected": {"bogon": 2}}]}  tabane_peer_rejected{peer="a",kind="bogon"} 2
type statusMetrics struct{ status func() any }

// Describe sends no descriptions, because the metrics depend on the status.
func (s statusMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s statusMetrics) Collect(metrics chan<- prometheus.Metric) {
	b, err := json.Marshal(s.status())
	var fields map[string]any
	if err == nil {
		err = json.Unmarshal(b, &fields)
	}
	if err != nil {
		metrics <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch value := fields[name].(type) {
		case []any:
			one := strings.TrimSuffix(name, "s")
			for _, item := range value {
				if item, ok := item.(map[string]any); ok {
					collectItem(metrics, one, item)
				}
			}
		case map[string]any:
			for _, kind := range slices.Sorted(maps.Keys(value)) {
				collectNumber(metrics, name, prometheus.Labels{"kind": kind}, value[kind])
			}
		default:
			collectNumber(metrics, name, nil, value)
		}
	}
}

// collectItem collects the numbers of an element of a list, labeled with its name or its neighbor.
func collectItem(metrics chan<- prometheus.Metric, one string, item map[string]any) {
	label, id := one, item["name"]
	if id == nil {
		label, id = "neighbor", item["neighbor"]
	}
	text, ok := id.(string)
	if !ok {
		return
	}
	for _, field := range slices.Sorted(maps.Keys(item)) {
		if kinds, ok := item[field].(map[string]any); ok {
			for _, kind := range slices.Sorted(maps.Keys(kinds)) {
				collectNumber(metrics, one+"_"+field, prometheus.Labels{label: text, "kind": kind}, kinds[kind])
			}
			continue
		}
		collectNumber(metrics, one+"_"+field, prometheus.Labels{label: text}, item[field])
	}
}

// collectNumber collects a number or a boolean; other values are ignored.
func collectNumber(metrics chan<- prometheus.Metric, name string, labels prometheus.Labels, value any) {
	var number float64
	switch value := value.(type) {
	case float64:
		number = value
	case bool:
		if value {
			number = 1
		}
	default:
		return
	}
	desc := prometheus.NewDesc("tabane_"+strings.ReplaceAll(name, "-", "_"), "As "+name+" of /status.", nil, labels)
	metrics <- prometheus.MustNewConstMetric(desc, prometheus.UntypedValue, number)
}
