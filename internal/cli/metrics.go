package cli

import (
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tabane/tabane/internal/kernel/contain"
)

// statusMetrics gives every number of a machine's status to Prometheus, so that /status and
// /metrics cannot disagree:
//
//	{"ready": true}                                tabane_ready 1
//	{"sessions": [{"neighbor": "a", "up": true}]}  tabane_session_up{neighbor="a"} 1
//	{"peers": [{"name": "a", "routes": 3}]}        tabane_peer_routes{peer="a"} 3
//	{"paths": [{"peer": "hq", "path": "lte", "mtu": 9}]}  tabane_path_mtu{peer="hq",path="lte"} 9
//	{"refused": {"no-rt": 2}}                      tabane_refused_total{kind="no-rt"} 2
//	{"peers": [{"name": "a", "rejected": {"bogon": 2}}]}  tabane_peer_rejected_total{peer="a",kind="bogon"} 2
//	{"paths": {"waiting": {"connections": 2}}}     tabane_paths_waiting{kind="connections"} 2
//
// A field of type uint64 is a counter, every other number and every boolean a gauge.
type statusMetrics struct{ status func() any }

// Describe sends no descriptions, because the metrics depend on the status.
func (s statusMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s statusMetrics) Collect(metrics chan<- prometheus.Metric) {
	v := reflect.Indirect(reflect.ValueOf(s.status()))
	if v.Kind() != reflect.Struct {
		err := fmt.Errorf("BUG: a status is a struct, not %v", v.Kind())
		metrics <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	fields(v, func(name string, v reflect.Value) {
		if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct {
			for i := range v.Len() {
				collectItem(metrics, strings.TrimSuffix(name, "s"), v.Index(i))
			}
			return
		}
		collectValue(metrics, name, prometheus.Labels{}, v)
	})
}

// fields calls f for each field of a struct that its JSON form has, those of embedded structs
// included.
func fields(v reflect.Value, f func(name string, v reflect.Value)) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch omitted := strings.Contains(options, "omit") && v.Field(i).IsZero(); {
		case field.Anonymous && name == "" && field.Type.Kind() == reflect.Struct:
			fields(v.Field(i), f)
		case name != "" && name != "-" && !omitted:
			f(name, v.Field(i))
		}
	}
}

// itemLabels are the keys of an element of a list that become labels.
var itemLabels = []string{"neighbor", "peer", "path", "rule"}

// collectItem collects the numbers of an element of a list, labeled with its name or by itemLabels.
func collectItem(metrics chan<- prometheus.Metric, one string, item reflect.Value) {
	labels := prometheus.Labels{}
	fields(item, func(name string, v reflect.Value) {
		switch {
		case v.Kind() != reflect.String:
		case name == "name":
			labels[one] = v.String()
		case slices.Contains(itemLabels, name):
			labels[name] = v.String()
		}
	})
	if len(labels) == 0 {
		return
	}
	fields(item, func(name string, v reflect.Value) { collectValue(metrics, one+"_"+name, labels, v) })
}

// collectValue collects a number or a boolean, or those of a struct or map, whose keys become the
// label kind. A struct or map in a struct has metrics of its own. Other values are ignored.
func collectValue(metrics chan<- prometheus.Metric, name string, labels prometheus.Labels, v reflect.Value) {
	collectKind := func(kind string, v reflect.Value) {
		more := prometheus.Labels{"kind": kind}
		for name, value := range labels {
			more[name] = value
		}
		collectNumber(metrics, name, more, v)
	}
	switch v.Kind() {
	case reflect.Struct:
		fields(v, func(kind string, v reflect.Value) {
			if v.Kind() == reflect.Struct || v.Kind() == reflect.Map {
				collectValue(metrics, name+"_"+kind, labels, v)
			} else {
				collectKind(kind, v)
			}
		})
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			collectKind(fmt.Sprint(i.Key()), i.Value())
		}
	default:
		collectNumber(metrics, name, labels, v)
	}
}

func collectNumber(metrics chan<- prometheus.Metric, name string, labels prometheus.Labels, v reflect.Value) {
	number, kind, suffix := 0.0, prometheus.GaugeValue, ""
	switch {
	case v.Kind() == reflect.Uint64:
		number, kind, suffix = float64(v.Uint()), prometheus.CounterValue, "_total"
	case v.CanUint():
		number = float64(v.Uint())
	case v.CanInt():
		number = float64(v.Int())
	case v.CanFloat():
		number = v.Float()
	case v.Kind() == reflect.Bool:
		if v.Bool() {
			number = 1
		}
	default:
		return
	}
	desc := prometheus.NewDesc("tabane_"+strings.ReplaceAll(name, "-", "_")+suffix, "As "+name+" of /status.", nil, labels)
	metrics <- prometheus.MustNewConstMetric(desc, kind, number)
}

// panics collects the panics that were contained, from 0, so that the first one is an increase.
type panics struct{}

var panicsDesc = prometheus.NewDesc("tabane_panics_total", "Panics that were contained, by what they cost.", []string{"boundary"}, nil)

// Describe implements prometheus.Collector.
func (panics) Describe(all chan<- *prometheus.Desc) { all <- panicsDesc }

// Collect implements prometheus.Collector.
func (panics) Collect(metrics chan<- prometheus.Metric) {
	for b, n := range contain.Counts() {
		metrics <- prometheus.MustNewConstMetric(panicsDesc, prometheus.CounterValue, float64(n), b.String())
	}
}

// contained is a collector whose panics cost its own metrics only: Prometheus' library calls it in
// a goroutine.
type contained struct {
	prometheus.Collector
	log *slog.Logger
}

// Collect implements prometheus.Collector.
func (c contained) Collect(metrics chan<- prometheus.Metric) {
	if err := contain.Do(contain.Request, c.log, []byte("GET /metrics"), func() { c.Collector.Collect(metrics) }); err != nil {
		metrics <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
	}
}
