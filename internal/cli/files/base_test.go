package files

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/scenario/scenariotest"
	"github.com/tabane/tabane/scenarios"
)

const baseFile = `name: lower
title: lower
sysctls: {net.ipv4.tcp_ecn: "1"}
nodes:
  a: {serve: {port: 80}}
  b:
    routes:
      - {dst: "2001:db8:2::/64", via: "2001:db8:1::1"}
links:
  l:
    rate: 10Mbit/s
    loss: ge:1%:20%
    delay: 20ms
    ends:
      - {node: a, interface: b, addresses: ["2001:db8:1::1/64"]}
      - {node: b, interface: a, addresses: ["2001:db8:1::2/64"]}
`

// files writes files into one directory and loads one of them.
func files(t *testing.T, load string, content map[string]string) (*File, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	return Load(load)
}

func TestBase(t *testing.T) {
	f, err := files(t, "upper.yaml", map[string]string{"lower.yaml": baseFile, "upper.yaml": `name: upper
title: upper
base: lower.yaml
sysctls: {net.ipv4.tcp_ecn: null, net.ipv4.tcp_sack: "0"}
nodes:
  b: {routes: null}
  c: {}
links:
  l: {rate: 5Mbit/s, loss: {kind: random, p: 1%}}
  m:
    ends:
      - {node: b, interface: c}
      - {node: c, interface: b}
`})
	if err != nil {
		t.Fatal(err)
	}
	s := f.Scenario
	l := s.Links["l"]
	if s.Name != "upper" || len(s.Nodes) != 3 || s.Nodes["a"].Serve.Port != 80 || len(s.Nodes["b"].Routes) != 0 || len(s.Links) != 2 {
		t.Errorf("%+v", s)
	}
	if l.Rate != 5*unit.MbitPerSecond || l.Delay != 20*time.Millisecond || l.Loss.P != 0.01 || l.Loss.R != 0 || len(l.Ends) != 2 {
		t.Errorf("link %+v, loss %+v", l, l.Loss)
	}
	if !reflect.DeepEqual(s.Sysctls, map[string]string{"net.ipv4.tcp_sack": "0"}) {
		t.Errorf("sysctls %v", s.Sysctls)
	}
}

func TestBaseOfABaseAndOfTheProgram(t *testing.T) {
	f, err := files(t, "top.yaml", map[string]string{
		"top.yaml":    "name: top\ntitle: top\nbase: middle.yaml\nlinks: {a: {rate: 5Mbit/s}}\n",
		"middle.yaml": "name: middle\ntitle: middle\nbase: epe-steady\nlinks: {b: {rate: 7Mbit/s}}\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	if l := f.Scenario.Links; l["a"].Rate != 5*unit.MbitPerSecond || l["b"].Rate != 7*unit.MbitPerSecond || len(l["csp"].Ends) != 4 {
		t.Errorf("links %+v", l)
	}
	if f.Scenario.Experiment != nil {
		t.Error("the experiment of the base is not the network's")
	}
}

func TestBaseRefuses(t *testing.T) {
	const head = "name: upper\ntitle: upper\n"
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
	}{
		"unknown":   {map[string]string{"u.yaml": head + "base: epe-stedy\n"}, `u.yaml:3:7: base: no scenario "epe-stedy" comes with the program, did you mean "epe-steady"?`},
		"no file":   {map[string]string{"u.yaml": head + "base: x.yaml\n"}, "u.yaml:3:7: base: read \"x.yaml\": no such file or directory"},
		"elsewhere": {map[string]string{"u.yaml": head + "base: ../x.yaml\n"}, "u.yaml:3:7: base: must be a scenario that comes with the program, or a file in the same directory"},
		"itself":    {map[string]string{"u.yaml": head + "base: u.yaml\n"}, "u.yaml:3:7: base: u.yaml is based on itself: u.yaml:3:7"},
		"a loop": {map[string]string{"u.yaml": head + "base: v.yaml\n", "v.yaml": head + "base: w.yaml\n", "w.yaml": head + "\nbase: v.yaml\n"},
			"w.yaml:4:7: base: v.yaml is based on itself: v.yaml:3:7 -> w.yaml:4:7"},
		"a daemon's file": {map[string]string{"u.yaml": head + "base: v.yaml\n", "v.yaml": "serve: {port: 80}\n"}, "u.yaml:3:7: base: v.yaml is no scenario"},
		"not YAML":        {map[string]string{"u.yaml": head + "base: v.yaml\n", "v.yaml": "a: [\n"}, "u.yaml:3:7: base: v.yaml:1:"},
		"a list":          {map[string]string{"u.yaml": head + "base: [v.yaml]\n", "v.yaml": baseFile}, "u.yaml:3:7: base: want text, got a list"},
		"null of nothing": {map[string]string{"u.yaml": head + "base: v.yaml\nlinks: {z: null}\n", "v.yaml": baseFile},
			"u.yaml:4:9: links.z: is null, which removes what the base has, and the base (u.yaml:3:7) has none"},
		"a fault over the base": {map[string]string{"u.yaml": head + "base: v.yaml\nlinks:\n  l: {delay: 2h}\n", "v.yaml": baseFile},
			"u.yaml:5:14: links.l.delay: must be from 0s to 1m0s, got 2h0m0s (in place of v.yaml:13:12)"},
		"a fault in the base": {map[string]string{"u.yaml": head + "base: v.yaml\nnodes: {b: null}\n", "v.yaml": baseFile},
			`v.yaml:16:16: links.l.ends[1].node: node "b" is not in nodes (the base of u.yaml:3:7)`},
		"an unknown key in the base": {map[string]string{"u.yaml": head + "base: v.yaml\n", "v.yaml": strings.Replace(baseFile, "delay", "dealy", 1)}, `v.yaml:13:5: links.l.dealy: unknown key, did you mean "delay"?`},
		"kinds that differ":          {map[string]string{"u.yaml": head + "base: v.yaml\nnodes: [a]\n", "v.yaml": baseFile}, "u.yaml:4:8: nodes: want a mapping"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := files(t, "u.yaml", tt.files)
			if strings.Contains(tt.want, " base: ") && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than the one fault:\n%v", err)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

// TestBaseAgainstPlainMappings checks that the bases of the embedded scenarios are merged in the
// same way as plain YAML mappings.
func TestBaseAgainstPlainMappings(t *testing.T) {
	based := 0
	for _, name := range scenarios.Names() {
		data, err := scenarios.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Parse(scenarios.File(name), data)
		if err != nil {
			t.Fatal(err)
		}
		if f.Scenario.Base == "" {
			continue
		}
		based++
		merged, err := Parse("merged.yaml", scenariotest.Text(t, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		f.Scenario.Base = ""
		if diff := cmp.Diff(merged.Scenario, f.Scenario, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
			cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
			t.Errorf("%s (-mappings +base):\n%s", name, diff)
		}
	}
	if based == 0 {
		t.Error("no scenario has a base")
	}
}

// TestEncode checks that the output of Encode is read as the same scenario without a base.
func TestEncode(t *testing.T) {
	for _, name := range scenarios.Names() {
		data, err := scenarios.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Parse(scenarios.File(name), data)
		if err != nil {
			t.Fatal(err)
		}
		text, err := Encode(f.Scenario)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("again.yaml", text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		f.Scenario.Base, f.Scenario.Family = "", "" // both have been applied
		if !reflect.DeepEqual(f.Scenario, again.Scenario) {
			t.Errorf("%s is another scenario once it is written", name)
		}
	}
}
