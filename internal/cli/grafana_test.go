package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// grafanaBoard is the part of a Grafana dashboard that its schema says nothing about.
type grafanaBoard struct {
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []struct {
		ID         int
		Title      string
		GridPos    struct{ X, Y, W, H int }
		Datasource struct{ Type, UID string }
		Targets    []map[string]any
	}
}

// TestGrafanaDashboard: Grafana would load the dashboard. Its document is valid by Grafana's own
// types of a dashboard, of the oldest and the latest version that it is for, and what these types
// leave open is as the Prometheus data source reads it. TestPrometheusLoadsDeployedFiles evaluates
// its expressions.
func TestGrafanaDashboard(t *testing.T) {
	text, err := os.ReadFile("../../deploy/grafana/tabane.json")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/grafana/dashboard-*.json")
	if err != nil || len(files) < 2 {
		t.Fatalf("schemas: %q, %v", files, err)
	}
	for _, file := range files {
		schema, err := jsonschema.NewCompiler().Compile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := validDashboard(schema, text); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for change, replaced := range map[string][2]string{
			"an unknown key":           {`"gridPos":`, `"gridPosition":`},
			"a key of the wrong type":  {`"refresh": "10s"`, `"refresh": 10`},
			"a number as a text":       {`"h": 8`, `"h": "8"`},
			"an unknown variable type": {`"type": "datasource"`, `"type": "data source"`},
			"no version":               {`"schemaVersion": `, `"version": `},
		} {
			wrong := bytes.Replace(text, []byte(replaced[0]), []byte(replaced[1]), 1)
			if bytes.Equal(wrong, text) {
				t.Fatalf("the dashboard has no %s", replaced[0])
			}
			if err := validDashboard(schema, wrong); err == nil {
				t.Errorf("%s: valid with %s", file, change)
			}
		}
	}
	metrics := exported(t)
	var board grafanaBoard
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	if err := board.check(metrics); err != nil {
		t.Error(err)
	}
	for change, apply := range map[string]func(*grafanaBoard){
		"two panels with one ID":           func(b *grafanaBoard) { b.Panels[1].ID = b.Panels[0].ID },
		"panels that overlap":              func(b *grafanaBoard) { b.Panels[1].GridPos = b.Panels[0].GridPos },
		"a panel beyond the grid":          func(b *grafanaBoard) { b.Panels[0].GridPos.X = 23 },
		"a data source without a variable": func(b *grafanaBoard) { b.Panels[0].Datasource.UID = "${source}" },
		"an unknown key of a query":        func(b *grafanaBoard) { b.Panels[0].Targets[0]["expression"] = "up" },
		"a legend with an unknown label":   func(b *grafanaBoard) { b.Panels[0].Targets[0]["legendFormat"] = "{{host}}" },
		"a panel without a query":          func(b *grafanaBoard) { b.Panels[0].Targets = nil },
	} {
		var wrong grafanaBoard
		if err := json.Unmarshal(text, &wrong); err != nil {
			t.Fatal(err)
		}
		if apply(&wrong); wrong.check(metrics) == nil {
			t.Errorf("valid with %s", change)
		}
	}
}

// validDashboard validates a document by a schema.
func validDashboard(schema *jsonschema.Schema, text []byte) error {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return schema.Validate(document)
}

var legendLabel = regexp.MustCompile(`{{\s*([^}\s]*)\s*}}`)

// check returns what Grafana would load and show wrong. exported are the metrics as
// TestMetricsAreDocumented has them.
func (b *grafanaBoard) check(exported map[string]string) error {
	const columns = 24
	labels := []string{"instance", "job"} // Prometheus adds them to each metric
	for _, described := range exported {
		_, list, _ := strings.Cut(described, ": ")
		labels = append(labels, strings.Split(list, ", ")...)
	}
	variables := map[string]string{}
	for _, v := range b.Templating.List {
		variables["${"+v.Name+"}"] = v.Query
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range b.Panels {
		if p.ID == 0 || ids[p.ID] {
			return fmt.Errorf("panel %q: ID %d is missing or another panel's", p.Title, p.ID)
		}
		ids[p.ID] = true
		if variables[p.Datasource.UID] != p.Datasource.Type || p.Datasource.Type != "prometheus" {
			return fmt.Errorf("panel %q: no variable for data source %v", p.Title, p.Datasource)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other, ok := taken[at]; ok || at[0] >= columns {
					return fmt.Errorf("panel %q: at column %d of %d it meets panel %q", p.Title, at[0], columns, other)
				}
				taken[at] = p.Title
			}
		}
		if len(p.Targets) == 0 {
			return fmt.Errorf("panel %q has no query", p.Title)
		}
		for i, target := range p.Targets {
			for key, value := range target {
				if text, ok := value.(string); !ok || text == "" || !slices.Contains([]string{"refId", "expr", "legendFormat"}, key) {
					return fmt.Errorf("panel %q: %s: %v is no key of a query of Prometheus", p.Title, key, value)
				}
			}
			if want := string(rune('A' + i)); target["refId"] != want || target["expr"] == nil {
				return fmt.Errorf("panel %q: query %v: want an expression with refId %s", p.Title, target, want)
			}
			legend, _ := target["legendFormat"].(string)
			for _, found := range legendLabel.FindAllStringSubmatch(legend, -1) {
				if !slices.Contains(labels, found[1]) {
					return fmt.Errorf("panel %q: no metric has label %q, only %s", p.Title, found[1], strings.Join(labels, ", "))
				}
			}
		}
	}
	return nil
}
