package cli

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tabane/tabane/internal/epe/asbr"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/epe/reflector"
	"github.com/tabane/tabane/internal/epe/router"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/proxy"
	"github.com/tabane/tabane/internal/study/site"
)

// fill sets every number, string and boolean of a status, with one element in each list.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	default:
		if v.CanInt() {
			v.SetInt(1)
		} else if v.CanUint() {
			v.SetUint(1)
		}
	}
}

// exported returns the names of the metrics that the daemons export, with their type and labels.
func exported(t *testing.T) map[string]string {
	t.Helper()
	names := map[string]string{"tabane_build_info": "gauge: role, version", "tabane_panics_total": "counter: boundary"}
	for _, status := range []any{&asbr.Status{}, &edge.Status{}, &gateway.Status{}, &proxy.Status{}, &reflector.Status{}, &router.Status{}, &site.Status{}} {
		fill(reflect.ValueOf(status).Elem())
		registry := prometheus.NewRegistry()
		registry.MustRegister(statusMetrics{func() any { return status }})
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			var labels []string
			for _, l := range f.Metric[0].Label {
				labels = append(labels, l.GetName())
			}
			slices.Sort(labels)
			names[f.GetName()] = strings.ToLower(f.GetType().String()) + ": " + strings.Join(labels, ", ")
		}
	}
	return names
}

var metricName = regexp.MustCompile(`\btabane_[a-z0-9_]+`)

// TestMetricsAreDocumented: docs/metrics.md has exactly the exported metrics with their types and
// labels.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); strings.HasPrefix(line, "| `tabane_") && len(cells) > 3 {
			documented[strings.Trim(cells[1], " `")] = strings.TrimSpace(cells[2]) + ": " + strings.TrimSpace(cells[3])
		}
	}
	names := exported(t)
	for name, labels := range names {
		if got, ok := documented[name]; !ok || got != labels {
			t.Errorf("docs/metrics.md: %s is %q (documented: %t), want %q", name, got, ok, labels)
		}
	}
	for name := range documented {
		if _, ok := names[name]; !ok {
			t.Errorf("docs/metrics.md: no daemon exports %s", name)
		}
	}
}

// TestDeployedMetricsExist: the alert rules and the dashboard are valid and use only exported
// metrics.
func TestDeployedMetricsExist(t *testing.T) {
	names := exported(t)
	for file, read := range map[string]func([]byte, any) error{
		"../../deploy/prometheus/tabane.rules.yml": func(b []byte, v any) error { return yaml.Unmarshal(b, v) },
		"../../deploy/grafana/tabane.json":         json.Unmarshal,
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := read(text, &v); err != nil || len(v) == 0 {
			t.Errorf("%s: %v", file, err)
		}
		used := metricName.FindAllString(string(text), -1)
		if len(used) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range used {
			if _, ok := names[name]; !ok {
				t.Errorf("%s: no daemon exports %s", file, name)
			}
		}
	}
}
