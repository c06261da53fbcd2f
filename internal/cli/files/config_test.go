package files

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/field"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/cli/config"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/role"
)

const scenarioFile = "../../../scenarios/epe-steady/scenario.yaml"

const edgeFile = `edge:
  asn: 65000
  router_id: 10.0.0.10
  interface: lan
  address: 2001:db8:1::10
  prefix: 2001:db8:1::/64
  reflectors:
    - address: 2001:db8:1::fe
  locators: [fc00::/16]
  peers:
    - {name: transit-a, rt: "65000:101", address: "2001:db8:1::a", table: 101}
    - {name: transit-b, rt: "65000:102", address: "2001:db8:1::b", table: 102}
`

func TestLoadScenario(t *testing.T) {
	f, err := Load(scenarioFile)
	if err != nil {
		t.Fatal(err)
	}
	s := f.Scenario
	if s == nil || f.ASBR != nil || f.Edge != nil || f.Reflector != nil || f.Router != nil {
		t.Fatalf("not a scenario alone: %+v", f)
	}
	if got := s.Links["a"].Rate; got != 30*unit.MbitPerSecond {
		t.Errorf("an inlined rate: got %s", got)
	}
	// The alias "*buffers" refers to the anchor "&buffers".
	if got := s.Nodes["client"].Sysctls; len(got) != 2 || !reflect.DeepEqual(got, s.Nodes["server"].Sysctls) {
		t.Errorf("alias: got %v", got)
	}
	if got, want := s.Nodes["server"].Edge.Peers[1].Address, netip.MustParseAddr("2001:db8:1::b"); got != want {
		t.Errorf("address: got %s, want %s", got, want)
	}
	if got := s.Experiment.Traffic["cbr"].Duration; got != 30*time.Second {
		t.Errorf("duration: got %s", got)
	}
	if got := s.Experiment.Traffic["bi"].Bytes; got != 100*unit.MB {
		t.Errorf("size: got %s", got)
	}
	if got := s.Experiment.Expect[0].AtLeast; got == nil || *got != 0.97 {
		t.Errorf("optional number: got %v", got)
	}
	if got := s.Experiment.Cases[0].Name; got != "1.1" {
		t.Errorf("text: got %q", got)
	}
}

func TestLoadDaemon(t *testing.T) {
	f, err := Parse("edge.yaml", []byte(edgeFile))
	if err != nil {
		t.Fatal(err)
	}
	if f.Edge == nil || f.Scenario != nil || f.ASBR != nil {
		t.Fatalf("not an edge alone: %+v", f)
	}
	if f.Edge.ASN != 65000 || f.Edge.Locators[0] != netip.MustParsePrefix("fc00::/16") {
		t.Errorf("got %+v", f.Edge)
	}
	for _, variant := range []string{
		"\xef\xbb\xbf" + edgeFile,
		strings.ReplaceAll(edgeFile, "\n", "\r\n"),
		"---\n" + edgeFile + "...\n",
		"# comment\n%YAML 1.2\n---\n" + edgeFile,
	} {
		got, err := Parse("edge.yaml", []byte(variant))
		if err != nil {
			t.Errorf("%.12q...: %v", variant, err)
		} else if !reflect.DeepEqual(got, f) {
			t.Errorf("%.12q...: reads otherwise", variant)
		}
	}
}

func TestMergeKeys(t *testing.T) {
	const file = `name: merge
title: merge
nodes:
  a: &base
    forwarding: true
    sysctls: &sysctls {net.a.b: 1, net.a.c: "2"}
  b:
    <<: *base
    sysctls:
      <<: [{net.a.c: 3}, *sysctls]
      net.a.d: 4
links:
  l: {ends: [{node: a, interface: x, addresses: ["2001:db8::1/64"]}, {node: b, interface: x, addresses: ["2001:db8::2/64"]}]}
`
	f, err := Parse("merge.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	b := f.Scenario.Nodes["b"]
	if want := map[string]string{"net.a.b": "1", "net.a.c": "3", "net.a.d": "4"}; !b.Forwarding || !reflect.DeepEqual(b.Sysctls, want) {
		t.Errorf("got forwarding %v, sysctls %v", b.Forwarding, b.Sysctls)
	}
}

// TestFaults checks the text of single faults. A "..." at the end of want matches any text.
func TestFaults(t *testing.T) {
	daemons := strings.Join(role.Names(), ", ")
	replace := func(old, new string) string {
		if !strings.Contains(edgeFile, old) {
			t.Fatalf("edgeFile lacks %q", old)
		}
		return strings.Replace(edgeFile, old, new, 1)
	}
	for _, tt := range []struct {
		name, file string
		want       []string
	}{
		{"empty", "", []string{"f: is empty"}},
		{"comment", "# nothing\n", []string{"f: is empty"}},
		{"null", "---\n", []string{"f: is empty"}},
		{"empty mapping", "{}", []string{"f:1:1: is empty"}},
		{"text", "hello", []string{`f:1:1: want a mapping (key: value), got text`}},
		{"list", "- a\n", []string{"f:1:1: want a mapping (key: value), got a list"}},
		{"neither", "egde:\n  asn: 1\n", []string{`f:1:1: is neither a daemon's file (keys ` + daemons + `), a scenario (keys name, ...`}},
		{"second document", edgeFile + "---\nrouter: {}\n", []string{"f:14:1: a second document starts here; one file holds one"}},
		{"not YAML", "edge: [1, 2\n", []string{"f:1:7: is not YAML: ..."}},
		{"tab", "edge:\n\tasn: 1\n", []string{"f:2:1: is not YAML: a line cannot begin with a tab; indent with spaces"}},
		{"NUL", "edge:\n  asn: \x00", []string{"f:2:8: control character U+0000"}},
		{"not UTF-8", "edge: \xff", []string{"f:1:7: byte 0xff is not UTF-8 text"}},
		{"too large", strings.Repeat("#", config.MaxSize+1), []string{"f: is larger than 8388608 bytes"}},
		{"unknown alias", "edge: *nothing\n", []string{`f:1:7: alias "nothing" has no anchor before it`}},
		{"alias of itself", "edge: &a\n  peers: [*a]\n", []string{`f:2:11: alias "a" has no anchor before it`}},

		{"unknown key", replace("  interface:", "  interfaces:"), []string{
			"f:1:1: edge.interface: ...",
			`f:4:3: edge.interfaces: unknown key, did you mean "interface"?; known here: asn, router_id, ...`,
		}},
		{"unknown top-level key", edgeFile + "nodes: {}\n", []string{"f:13:1: nodes: unknown key; known here: " + daemons}},
		{"duplicate key", replace("  interface: lan\n", "  interface: lan\n  asn: 65001\n"), []string{"f:5:3: edge.asn: key is given twice; first on line 2"}},
		{"wrong type", replace("asn: 65000", "asn: many"), []string{`f:2:8: edge.asn: want a whole number from 0 to 4294967295, got "many"`}},
		{"quoted number", replace("asn: 65000", `asn: "65000"`), []string{`f:2:8: edge.asn: want a whole number from 0 to 4294967295, got "65000"`}},
		{"negative", replace("asn: 65000", "asn: -1"), []string{"f:2:8: edge.asn: want a whole number from 0 to 4294967295, got -1"}},
		{"overflow", replace("asn: 65000", "asn: 4294967296"), []string{"f:2:8: edge.asn: want a whole number from 0 to 4294967295, got 4294967296"}},
		{"fraction", replace("asn: 65000", "asn: 1.5"), []string{"f:2:8: edge.asn: want a whole number from 0 to 4294967295, got 1.5"}},
		{"octal", replace("asn: 65000", "asn: 010"), []string{"f:2:8: edge.asn: want a whole number from 0 to 4294967295, got 010"}},
		{"hexadecimal", replace("asn: 65000", "asn: 0x10"), []string{"f:2:8: edge.asn: want a whole number from 0 to 4294967295, got 0x10"}},
		{"zero", replace("asn: 65000", "asn: 0"), []string{"f:2:8: edge.asn: must be > 0, got 0"}},
		{"not an address", replace("address: 2001:db8:1::10", "address: server"), []string{`f:5:12: edge.address: want an IP address like "2001:db8::1", got "server"`}},
		{"empty address", replace("address: 2001:db8:1::10", `address: ""`), []string{`f:5:12: edge.address: want an IP address like "2001:db8::1", got ""`}},
		{"not a prefix", replace("[fc00::/16]", "[fc00::]"), []string{`f:9:14: edge.locators[0]: want an IP prefix like "2001:db8::/32", got "fc00::"`}},
		{"list wanted", replace("[fc00::/16]", "fc00::/16"), []string{`f:9:13: edge.locators: want a list, got "fc00::/16"`}},
		{"text wanted", replace("interface: lan", "interface: [lan]"), []string{"f:4:14: edge.interface: want text, got a list"}},
		{"bool wanted", replace("table: 101}", "table: 101, backup: yes}"), []string{`f:11:88: edge.peers[0].backup: want true or false, got "yes"`}},
		{"mapping wanted", "edge: 5\n", []string{"f:1:7: edge: want a mapping (key: value), got 5"}},
		{"key missing", replace("  interface: lan\n", ""), []string{"f:1:1: edge.interface: ..."}},
		{"key missing in a list", replace(`rt: "65000:101", `, ""), []string{"f:11:8: edge.peers[0].rt: ..."}},
		{"value missing", replace("interface: lan", "interface:"), []string{"f:4:13: edge.interface: want text, got nothing"}},
		{"tag", replace("interface: lan", "interface: !!str lan"), []string{"f:4:14: edge.interface: YAML tags (!!str) are not used here"}},
		{"escaped line break", "edge:\n  \"a\\nb\": 1\n", nil},

		{"EPE address outside the prefix", replace(`"2001:db8:1::a"`, `"2001:db8:2::a"`), []string{"f:11:51: edge.peers[0].address: ..."}},
		{"peer without address", replace(`address: "2001:db8:1::a", `, ""), []string{"f:11:8: edge.peers[0].address: ..."}},
		{"duplicate RT", replace("65000:102", "65000:101"), []string{"f:12:29: edge.peers[1].rt: 65000:101 for ipv6 is already peers[0].rt..."}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file, err := Parse("f", []byte(tt.file))
			var e *config.Error
			if !errors.As(err, &e) || file != nil {
				t.Fatalf("got %v, %v; want faults", file, err)
			}
			lines := strings.Split(err.Error(), "\n")
			if tt.want == nil { // only well-formed lines
				for _, l := range lines {
					if !strings.HasPrefix(l, "f:") {
						t.Errorf("broken line %q", l)
					}
				}
				return
			}
			if !slices.EqualFunc(lines, tt.want, func(got, want string) bool {
				start, any := strings.CutSuffix(want, "...")
				return got == want || any && strings.HasPrefix(got, start)
			}) {
				t.Errorf("got\n%s\nwant\n%s", err, strings.Join(tt.want, "\n"))
			}
		})
	}
}

// TestAllAtOnce checks that syntax errors and invalid values of all sections are reported together.
func TestAllAtOnce(t *testing.T) {
	const file = `edge:
  asn: many
  router: 10.0.0.10
  interface: 5
  interface: lan
  mptcp: {subflows: 99}
reflector:
  asn: 0
router:
  neighbors: 7
asbr:
  locator: {prefix: none}
  peers: [{name: transit-a, id: 1}]
`
	_, err := Parse("f", []byte(file))
	for _, want := range []string{
		"f:2:8: edge.asn: want", "f:3:3: edge.router: unknown key", "f:5:3: edge.interface: key is given twice",
		"f:6:21: edge.mptcp.subflows: must", "edge.prefix: must", "edge.address: must", "f:8:8: reflector.asn: must",
		"f:9:1: router.asn: must", "f:10:14: router.neighbors: want a list",
		"f:12:21: asbr.locator.prefix: want an IP prefix",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("lacks %q", want)
		}
	}
	// A value that could not be read is not validated.
	if strings.Count(err.Error(), "edge.asn") != 1 || strings.Count(err.Error(), "router.neighbors") != 1 || strings.Count(err.Error(), "asbr.locator") != 1 {
		t.Error("a fault is reported twice")
	}
	if t.Failed() {
		t.Log(err)
	}
}

// TestHostile reads documents that are made to exhaust memory, stack or time of the parser.
func TestHostile(t *testing.T) {
	var bomb, mergeBomb strings.Builder
	bomb.WriteString("name: bomb\nsysctls:\n  a: &a0 x\n")
	mergeBomb.WriteString("name: &m0 {" + strings.Repeat("k", 8) + ": v}\n")
	var keys []string
	for i := range 5000 {
		keys = append(keys, fmt.Sprintf("k%d: v", i))
	}
	mergeBomb.WriteString("nodes: &m1 {" + strings.Join(keys, ", ") + "}\nlinks:\n")
	list := func(name string) string {
		return "[" + strings.TrimSuffix(strings.Repeat("*"+name+", ", 9), ", ") + "]"
	}
	for i := 1; i < 20; i++ {
		fmt.Fprintf(&bomb, "x%d: &a%d %s\n", i, i, list(fmt.Sprintf("a%d", i-1)))
		fmt.Fprintf(&mergeBomb, "  l%d: &m%d {<<: %s}\n", i, i+1, list(fmt.Sprintf("m%d", i)))
	}
	fmt.Fprintf(&bomb, "links: {l: {ends: *a19}}\n")
	many := func(s string) string { return strings.Repeat(s, config.MaxSize/len(s)) }
	for name, file := range map[string]string{
		"alias bomb":          bomb.String(),
		"merge bomb":          mergeBomb.String(),
		"open lists":          many("["),
		"open mappings":       many("{"),
		"open keys":           many("{a: "),
		"lists on one line":   many("- "),
		"lists on lines":      many("-\n"),
		"question marks":      many("? "),
		"colons":              many(": "),
		"keys on one line":    many("a: "),
		"tags":                many("!a "),
		"tags on lines":       many("!a\n"),
		"anchors":             many("&a "),
		"anchors on lines":    many("&a\n"),
		"aliases":             many("*a "),
		"quotes":              many(`"`),
		"single quotes":       many("'"),
		"documents":           many("---\n"),
		"document ends":       many("...\n"),
		"directives":          many("%YAML 1.2\n"),
		"literals":            many("|\n"),
		"merge keys":          many("<<: "),
		"commas":              "[" + many(",")[1:],
		"closing":             many("]"),
		"10 MB":               strings.Repeat("a: 1\n", 2_000_000),
		"one key, many times": many("name: a\n"),
		"one key, often":      strings.Repeat("name: a\n", config.MaxKeys),
		"comments":            many("#\n"),
		"carriage returns":    many("\r"),
		"deep block mapping": func() string {
			var b strings.Builder
			for i := 0; b.Len() < config.MaxSize/2; i++ {
				b.WriteString(strings.Repeat(" ", i) + "a:\n")
			}
			return b.String()
		}(),
		"deep flow": "edge: " + strings.Repeat("[", 40) + strings.Repeat("]", 40),
	} {
		t.Run(name, func(t *testing.T) {
			if f, err := Parse("f", []byte(file)); err == nil {
				t.Errorf("accepted: %+v", f)
			} else if n := strings.Count(err.Error(), "\n"); n > config.MaxFaults {
				t.Errorf("reports %d faults", n+1)
			}
		})
	}
}

// withNetworks returns the configuration of a router with n networks.
func withNetworks(n int) []byte {
	var b strings.Builder
	b.WriteString("router:\n  asn: 65001\n  router_id: 10.1.0.1\n  neighbors:\n" +
		"    - {name: a, asn: 65000, address: \"2001:db8:a::1\", interface: eth0}\n  networks:\n")
	for i := range n {
		fmt.Fprintf(&b, "    - 2001:db8:%x:%x::/64\n", i>>16, i&0xffff)
	}
	return []byte(b.String())
}

func TestLargeFiles(t *testing.T) {
	f, err := Parse("f", withNetworks(230_000))
	if err != nil || len(f.Router.Networks) != 230_000 {
		t.Fatal("the routes of the Internet do not fit: ", err)
	}
	var list []string
	for _, p := range f.Router.Networks {
		list = append(list, strconv.Quote(p.String()))
	}
	if f, err = Parse("f", []byte(`{"router": {"asn": 65001, "router_id": "10.1.0.1", "neighbors": [{"name": "a", "asn": 65000,
		"address": "2001:db8:a::1", "interface": "eth0"}], "networks": [`+strings.Join(list, ",\n")+"]}}")); err != nil || len(f.Router.Networks) != len(list) {
		t.Fatal("as JSON: ", err)
	}
	var aliases strings.Builder
	aliases.WriteString("router:\n  networks: &n [" + strings.Repeat("\"2001:db8::/32\", ", 50) + "]\n  neighbors:\n")
	for range config.MaxValues / 50 {
		aliases.WriteString("    - {deny: *n}\n")
	}
	var keys strings.Builder
	keys.WriteString("name: x\nsysctls:\n")
	for i := range config.MaxKeys {
		fmt.Fprintf(&keys, "  net.x%d: 1\n", i)
	}
	for name, tt := range map[string]struct {
		file []byte
		want string
	}{
		"values": {withNetworks(config.MaxValues), "f:299986:7: router.networks[299979]: is value 300001 of the file, aliases expanded, which may hold 300000"},
		"words":  {[]byte(strings.Repeat("x ", 800_000)), "f: holds 800000 words and marks, more than 700000"},
		"keys":   {[]byte(keys.String()), "f: holds 20002 keys, more than 20000"},
	} {
		if _, err := Parse("f", tt.file); err == nil || err.Error() != tt.want {
			t.Errorf("%s: got %v\nwant %s", name, err, tt.want)
		}
	}
	if _, err := Parse("f", []byte(aliases.String())); err == nil || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), "is value 300001 of the file") {
		t.Errorf("aliases: got %.500v", err)
	}
}

func TestLoadErrors(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: got %v", err)
	}
	if _, err := Load(t.TempDir()); err == nil {
		t.Error("directory: no error")
	}
	// Load stops reading an endless file at config.MaxSize.
	if _, err := Load("/dev/zero"); err == nil {
		t.Error("endless file: no error")
	}
}

func FuzzLoad(f *testing.F) {
	seed, err := os.ReadFile(scenarioFile)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(edgeFile))
	f.Add([]byte("a: &a {<<: *a}\n? b\n: !!str |\n  c\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("f", data)
		if (file == nil) == (err == nil) {
			t.Fatalf("got %v and %v", file, err)
		}
		if err != nil {
			var e *config.Error
			if !errors.As(err, &e) || len(e.Faults) == 0 {
				t.Fatalf("got %T %v", err, err)
			}
			for _, line := range e.Lines() {
				if strings.ContainsAny(line, "\n\r\x00") || !strings.HasPrefix(line, "f:") {
					t.Fatalf("broken line %q", line)
				}
			}
			return
		}
		again, err := Parse("f", bytes.Clone(data))
		if err != nil || !reflect.DeepEqual(file, again) {
			t.Fatalf("reads otherwise the second time: %v", err)
		}
	})
}

// TestEveryTypeIsKnown walks every type that a file can fill, because the decoder panics on a type
// that it does not support.
func TestEveryTypeIsKnown(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var walk func(path string, typ reflect.Type)
	walk = func(path string, typ reflect.Type) {
		if seen[typ] || field.IsScalar(typ) {
			return
		}
		seen[typ] = true
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice:
			walk(path, typ.Elem())
		case reflect.Map:
			if typ.Key().Kind() != reflect.String {
				t.Errorf("%s: keys are %s", path, typ.Key())
			}
			walk(path, typ.Elem())
		case reflect.Struct:
			field.Each(typ, func(name string, index []int) { walk(path+"."+name, typ.FieldByIndex(index).Type) })
		default:
			t.Errorf("%s: the decoder knows no %s", path, typ)
		}
	}
	walk("", reflect.TypeFor[role.Sections]())
	walk("", reflect.TypeFor[scenario.Spec]())
}

// TestLocate checks the positions of faults that are found after reading.
func TestLocate(t *testing.T) {
	data, err := os.ReadFile(scenarioFile)
	if err != nil {
		t.Fatal(err)
	}
	var list fault.List
	list.Add("experiment.transports.tcp.links[0]", "leads nowhere")
	list.Add("nodes.reflector.reflector.asn", "is not ours")
	got := Locate("f", data, list).Error()
	lines := strings.Split(string(data), "\n")
	for i, want := range []string{"asn: 65000", "links: [a]"} {
		var line, column int
		if _, err := fmt.Sscanf(strings.Split(got, "\n")[i], "f:%d:%d:", &line, &column); err != nil || !strings.Contains(lines[line-1], want) {
			t.Errorf("%q is at %q, %v", strings.Split(got, "\n")[i], lines[max(0, line-1)], err)
		}
	}
	if err := Locate("f", data, nil); err != nil {
		t.Errorf("no faults are %v", err)
	}
}

// TestShortForms checks that the short form of a value and its mapping decode to the same value.
func TestShortForms(t *testing.T) {
	scenario := func(link string) string {
		return "name: x\ntitle: x\nnodes:\n  a: {}\n  b: {}\nlinks:\n  l:\n    ends:\n      - {node: a, interface: a0}\n      - {node: b, interface: b0}\n    rate: 1Mbit/s\n" +
			"    delay: 20ms\n    " + link + "\n"
	}
	for short, mapping := range map[string]string{
		"loss: 0.1%":                 "loss: {kind: random, p: 0.001}",
		"loss: 1e-3":                 "loss: {kind: random, p: 0.1%}",
		"loss: ge:1%:20%":            "loss: {kind: gilbert-elliott, p: 0.01, r: 2e-1, bad: 100%}",
		"jitter: 5ms":                "jitter: {kind: uniform, amount: 5ms}",
		"jitter: normal:5ms:reorder": "jitter: {kind: normal, amount: 5ms, reorder: true}",
		"buffer: 64kB":               "buffer: {bytes: 64000}",
		"forward: {loss: 1%, queue: 9ms, rate: unlimited}": "forward: {loss: {kind: random, p: 1e-2}, queue: {time: 9ms}, rate: unlimited}",
		"duplicate: 1%": "duplicate: 0.01",
	} {
		a, err := Parse("a", []byte(scenario(short)))
		if err != nil {
			t.Errorf("%s: %v", short, err)
			continue
		}
		b, err := Parse("b", []byte(scenario(mapping)))
		if err != nil || !reflect.DeepEqual(a, b) {
			t.Errorf("%s is not %s: %v", short, mapping, err)
		}
		key, value, _ := strings.Cut(short, ": ")
		if strings.Contains(value, "{") {
			continue
		}
		set := a.Scenario.Links["l"].Shape
		field.Clear(&set, key)
		if err := set.Set(key, value); err != nil || !reflect.DeepEqual(set, a.Scenario.Links["l"].Shape) {
			t.Errorf("%s: a command line sets %s, %v", short, set, err)
		}
	}
	for link, want := range map[string]string{
		"loss: ge:1%":      `f:13:11: links.l.loss: want ge:P:R`,
		"loss: 2":          `f:13:11: links.l.loss: want a probability`,
		"loss: true":       `f:13:11: links.l.loss: want a mapping`,
		"jitter: fast":     `f:13:13: links.l.jitter: want a duration`,
		"jitter: 1s":       `f:13:5: links.l.jitter.amount: must not be more than the delay`,
		"duplicate: 1%%":   `f:13:16: links.l.duplicate: want a number`,
		`duplicate: "0.1"`: `f:13:16: links.l.duplicate: want a number, got "0.1"`,
		"lost: 1%":         `did you mean "loss"?`,
	} {
		_, err := Parse("f", []byte(scenario(link)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", link, err, want)
		}
	}
}
