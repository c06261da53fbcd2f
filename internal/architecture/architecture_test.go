// Package architecture checks which package may import which. It has tests only.
package architecture

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/tabane/tabane"

// layer is a set of packages at one height. A package may import packages of lower layers only, and
// none of its own height.
type layer struct {
	height int
	// group is the row of CONTRIBUTING.md's table that the layer belongs to.
	group string
	// because is the reason why a package of this layer must not import one of its own height
	// or above.
	because string
}

// pure reports whether packages of the layer have no sockets, files, clock or randomness.
func (l layer) pure() bool { return l.group == foundationGroup || l.group == modelGroup }

// testing reports whether packages of the layer are for tests only.
func (l layer) testing() bool { return l == finders || l == fakes || l == labFakes }

// The groups of layers, as CONTRIBUTING.md has them.
const (
	foundationGroup = "foundation"
	modelGroup      = "models"
	adapterGroup    = "adapters"
	sharedGroup     = "shared"
	engineGroup     = "daemons and engines"
	specGroup       = "specification"
	runnerGroup     = "experiments"
	commandGroup    = "command line"
)

var (
	foundation         = layer{0, foundationGroup, "it is pure: values and arithmetic that all other packages use"}
	grammar            = layer{1, foundationGroup, "it is the syntax of values, independent of their use"}
	models             = layer{2, modelGroup, "a model is pure arithmetic on values and knows no other model: code that needs two of them combines them"}
	shipped            = layer{3, specGroup, "it embeds files and does not parse them"}
	settled            = layer{5, sharedGroup, "it is a configuration that servers and what configures them agree on"}
	contracts          = layer{5, sharedGroup, "it is values that a daemon and what works for it agree on"}
	processes          = layer{8, adapterGroup, "it configures the process for adapters and knows none of them"}
	loader             = layer{9, adapterGroup, "it loads programs for adapters and knows none of them"}
	probes             = layer{9, adapterGroup, "it detects for an adapter whether a neighbor is reachable and knows no adapter"}
	transports         = layer{9, adapterGroup, "it carries messages for an adapter and knows no adapter"}
	adapters           = layer{10, adapterGroup, "an adapter knows the one outside thing that it adapts, and nothing that uses it"}
	finders            = layer{4, adapterGroup, "it finds the programs of others for tests"}
	fakes              = layer{11, adapterGroup, "it replaces an adapter in tests"}
	conditions         = layer{12, sharedGroup, "it examines the host by adapters for daemons and doctor, and knows neither"}
	shared             = layer{15, sharedGroup, "it is what daemons share, so it knows none of them"}
	engines            = layer{20, engineGroup, "a daemon or an engine knows no other one, nor the experiment that it runs in"}
	results            = layer{25, specGroup, "a result does not know the experiment that it came out of, nor what ran it"}
	roles              = layer{25, specGroup, "the table of daemons knows the daemons, not what starts them"}
	scenarios          = layer{30, specGroup, "a scenario specifies an experiment and does not know what runs it"}
	labs               = layer{31, runnerGroup, "a lab is a network; what runs in it and is measured is for packages above"}
	labFakes           = layer{31, runnerGroup, "it replaces what a lab starts, in tests"}
	runners            = layer{32, runnerGroup, "what runs an experiment, what draws it and what examines the host do not know each other"}
	validation         = layer{33, runnerGroup, "it compares experiments with each other and with theory, so it knows what runs them and they do not know it"}
	settings           = layer{39, commandGroup, "files are read for the command line, which config does not know"}
	files              = layer{40, commandGroup, "it declares kinds of files to config, for the command line"}
	commands           = layer{41, commandGroup, "it has the command line of daemons, and what the one of experiments shares with it"}
	experimentCommands = layer{42, commandGroup, "the command line is imported by the main package alone"}
	mains              = layer{50, commandGroup, "nothing imports a main package"}
)

// layerOf has every package of the module. A package that is not in it has no layer yet: choose one
// here.
var layerOf = map[string]layer{
	"internal/unit":        foundation,
	"internal/stat":        foundation,
	"internal/codel":       foundation,
	"internal/fault":       foundation,
	"internal/feature":     foundation,
	"internal/health":      foundation,
	"internal/srv6":        foundation,
	"internal/table":       foundation,
	"internal/vpn":         foundation,
	"internal/field":       grammar,
	"internal/bgp/message": grammar,
	"internal/bgp/rib":     models,
	"internal/channel":     models,
	"internal/cc":          models,
	"internal/sched":       models,
	"internal/shape":       models,
	"internal/repair":      models,
	"internal/pathset":     models,
	"internal/overflow":    models,
	"internal/quality":     models,
	"internal/policy":      models,
	"internal/reseq":       models,
	"internal/tunnel":      models,
	"internal/session":     models,
	"internal/qoe":         models,
	"internal/page":        models,

	"internal/realtime":  processes,
	"internal/hangup":    processes,
	"internal/contain":   processes,
	"internal/privilege": processes,

	"internal/bfd": probes,

	"internal/control":     adapters,
	"internal/seccomp":     adapters,
	"internal/systemd":     adapters,
	"internal/rtr":         adapters,
	"internal/netns":       adapters,
	"internal/route":       adapters,
	"internal/tc":          adapters,
	"internal/nft":         adapters,
	"internal/mptcp":       adapters,
	"internal/bgp":         adapters,
	"internal/bgp/session": transports,
	"internal/link":        adapters,
	"internal/tun":         adapters,
	"internal/udp":         adapters,
	"internal/bpf":         loader,

	"internal/bpf/flowcount":  adapters,
	"internal/bpf/congestion": adapters,
	"internal/bpf/protocol":   adapters,
	"internal/bpf/silence":    adapters,
	"internal/bpf/forward":    adapters,
	"internal/bpf/relay":      adapters,
	"internal/bpf/wire":       adapters,
	"internal/pcap":           adapters,

	"internal/browser": adapters,

	"internal/packet": adapters,
	"internal/tcp":    adapters,

	"internal/bpf/bpftest":           fakes,
	"internal/route/routetest":       fakes,
	"internal/netns/netnstest":       fakes,
	"internal/mptcp/mptcptest":       fakes,
	"internal/seccomp/seccomptest":   fakes,
	"internal/scenario/scenariotest": fakes,
	"internal/lab/labtest":           labFakes,
	"internal/accessor":              fakes,
	"internal/programs":              finders,
	"internal/published":             fakes,

	"internal/plane":       contracts,
	"internal/condition":   conditions,
	"internal/daemon":      shared,
	"internal/pathmanager": shared,
	"internal/httpd":       settled,
	"internal/site":        shared,
	"internal/sealed":      shared,
	"internal/forward":     shared,

	"internal/asbr":       engines,
	"internal/reflector":  engines,
	"internal/edge":       engines,
	"internal/gateway":    engines,
	"internal/flows":      engines,
	"internal/congestion": engines,
	"internal/mptcpify":   engines,
	"internal/router":     engines,
	"internal/traffic":    engines,
	"internal/study":      engines,
	"internal/sim":        engines,
	"internal/capture":    engines,

	"internal/result":    results,
	"internal/role":      roles,
	"internal/scenario":  scenarios,
	"scenarios":          shipped,
	"internal/lab":       labs,
	"internal/labrun":    runners,
	"internal/simrun":    runners,
	"internal/validate":  validation,
	"internal/report":    runners,
	"internal/doctor":    runners,
	"internal/dashboard": runners,

	"internal/config":  settings,
	"internal/files":   files,
	"internal/cli/lab": experimentCommands,
	"cmd/tabane-lab":   mains,
	"internal/cli":     commands,
	"cmd/tabane":       mains,

	"internal/architecture": mains,
	"internal/acceptance":   mains,
}

// reserved are libraries that belong to certain packages, so that they can be replaced and their
// faults contained. Tests may import them, as something to compare with.
var reserved = []struct {
	library string
	owners  []string
	because string
}{
	{"github.com/osrg/gobgp", nil, "GoBGP is an independent peer of tests; the speaker is bgp (docs/adr/0011)"},
	// The lab writes the files that its daemons read; it reads none, so the strictness of
	// config does not suffer.
	{"github.com/goccy/go-yaml", []string{"internal/config", "internal/lab", "internal/scenario/scenariotest"}, "YAML is read by config alone, which bounds and places everything"},
	{"github.com/cilium/ebpf", []string{"internal/bpf", "internal/bpf/flowcount", "internal/bpf/silence", "internal/bpf/protocol", "internal/bpf/congestion", "internal/bpf/forward", "internal/bpf/relay", "internal/bpf/wire"}, "programs and maps are behind bpf, so that an engine is tested without a kernel"},
	{"github.com/google/nftables", []string{"internal/nft"}, "nf_tables is nft's"},
	{"github.com/spf13/cobra", []string{"internal/cli", "internal/cli/lab"}, "flags are the command line's"},
	{"modernc.org/sqlite", []string{"internal/study"}, "the database of a study is its own"},
	{"github.com/flynn/noise", []string{"internal/session"}, "the handshake of gateways is behind session"},
	{"golang.zx2c4.com/wireguard", nil, "wireguard-go is something for benchmarks to compare with; the TUN device is tun"},
	{"github.com/chromedp", []string{"internal/browser"}, "it tests the dashboard's page; what measures pages is browser, which has the types of HAR from it (docs/adr/0020)"},
	{"github.com/gopacket/gopacket", nil, "captures are read and written by pcap; gopacket is something for tests to compare with"},
	{"gonum.org/v1/plot", []string{"internal/report"}, "figures are report's"},
}

// unlinked are libraries and packages that the program tabane does not have, because hosts of a network
// do not need them: they are of tabane-lab.
var unlinked = []string{
	"modernc.org/sqlite", "gonum.org/v1/plot", "github.com/chromedp", "github.com/gopacket",
	module + "/scenarios", module + "/internal/browser", module + "/internal/cli/lab", module + "/internal/files", module + "/internal/lab",
	module + "/internal/labrun", module + "/internal/report", module + "/internal/result", module + "/internal/scenario",
	module + "/internal/sim", module + "/internal/simrun", module + "/internal/site", module + "/internal/study", module + "/internal/validate",
}

// TestProductHasNoLaboratory: what the program tabane links is for hosts of a network, and tabane-lab has
// the rest.
func TestProductHasNoLaboratory(t *testing.T) {
	linked := func(program string) []string {
		cmd := exec.Command("go", "list", "-deps", module+"/cmd/"+program)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list: %v: %s", err, stderr.String())
		}
		return strings.Fields(string(out))
	}
	product, laboratory := linked("tabane"), linked("tabane-lab")
	for _, library := range unlinked {
		of := func(i string) bool { return i == library || strings.HasPrefix(i, library+"/") }
		if i := slices.IndexFunc(product, of); i >= 0 {
			t.Errorf("the program tabane must not have %s: it is of tabane-lab", product[i])
		}
		if !slices.ContainsFunc(laboratory, of) && library != "github.com/gopacket" {
			t.Errorf("the program tabane-lab has nothing of %s either", library)
		}
	}
}

// impure are packages of the standard library that foundation and models must not import. time is
// allowed for its Duration; TestModelsReadNoClock finds the functions that read the clock.
var impure = []string{"os", "net", "net/http", "io/fs", "os/exec", "os/signal", "syscall", "math/rand", "math/rand/v2", "crypto/rand", "log", "log/slog", "database/sql"}

// pkg is what `go list -json` says of a package.
type pkg struct {
	ImportPath, Dir, Name, Doc                  string
	GoFiles, Imports, TestImports, XTestImports []string
}

// all is the module's packages, asked for once.
var all = sync.OnceValues(list)

func packages(t *testing.T) []pkg {
	t.Helper()
	list, err := all()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func list() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Name,Doc,GoFiles,Imports,TestImports,XTestImports", module+"/...")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, stderr.String())
	}
	var found []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return found, nil
		} else if err != nil {
			return nil, err
		}
		found = append(found, p)
	}
}

func short(importPath string) string { return strings.TrimPrefix(importPath, module+"/") }

// upward says why from may not import to, or nothing.
func upward(from, to string) string {
	a, known := layerOf[from]
	b, also := layerOf[to]
	switch {
	case !known || !also || a.height > b.height:
		return ""
	case a.height == b.height:
		return fmt.Sprintf("%s must not import %s, of the same layer (%s): %s", from, to, a.group, a.because)
	}
	return fmt.Sprintf("%s must not import %s, of a layer above (%s): %s", from, to, b.group, a.because)
}

// foreign says why a package may not import a library, or nothing.
func foreign(from, library string) string {
	for _, r := range reserved {
		if (library == r.library || strings.HasPrefix(library, r.library+"/")) && !slices.Contains(r.owners, from) {
			return fmt.Sprintf("%s must not import %s, which belongs to %s: %s", from, library, strings.Join(r.owners, ", "), r.because)
		}
	}
	// What is drawn from a seed that comes in is as pure as arithmetic; a model may have a
	// generator of its own.
	seeded := layerOf[from] == models && library == "math/rand/v2"
	if f := layerOf[from]; f.pure() && slices.Contains(impure, library) && !seeded {
		return fmt.Sprintf("%s must not import %s: %s", from, library, f.because)
	}
	return ""
}

func TestImportsGoDownward(t *testing.T) {
	for _, p := range packages(t) {
		from := short(p.ImportPath)
		for _, i := range p.Imports {
			if why := upward(from, short(i)); why != "" {
				t.Error(why)
			}
			if why := foreign(from, i); why != "" {
				t.Error(why)
			}
			if f := layerOf[short(i)]; f.testing() && !layerOf[from].testing() {
				t.Errorf("%s must not import %s: %s only", from, short(i), f.because)
			}
		}
		// A test may use packages of its own layer and below and the fakes of an adapter,
		// not those above.
		for _, i := range slices.Concat(p.TestImports, p.XTestImports) {
			to := short(i)
			if layerOf[from].height < layerOf[to].height && from != to && layerOf[from] != mains && layerOf[to] != fakes && layerOf[to] != finders {
				t.Errorf("the tests of %s", upward(from, to))
			}
		}
	}
}

func TestEveryPackageHasItsPlace(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range packages(t) {
		name := short(p.ImportPath)
		seen[name] = true
		if _, ok := layerOf[name]; !ok {
			t.Errorf("%s has no layer: choose one in the table layerOf of this test, name it in CONTRIBUTING.md, and run go test ./internal/architecture -update", name)
		}
		switch path.Base(name) {
		case "util", "utils", "common", "helper", "helpers", "misc", "shared", "lib", "base", "types":
			t.Errorf("%s is named after nothing: name a package for what it is about", name)
		}
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment: say in one what it does and what it refuses to do", name)
		}
		if len(p.GoFiles) > 0 && p.Name != "main" && !strings.HasPrefix(p.Doc, "Package "+p.Name+" ") {
			t.Errorf("the package comment of %s must begin with %q", name, "Package "+p.Name)
		}
	}
	for name := range layerOf {
		if !seen[name] {
			t.Errorf("%s is in the table layerOf of this test, but not in the module", name)
		}
	}
}

// TestModelsReadNoClock checks what the import of "time" does not show: foundation and models get
// time as an argument, and the simulator has its own.
func TestModelsReadNoClock(t *testing.T) {
	clock := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	for _, p := range packages(t) {
		if !layerOf[short(p.ImportPath)].pure() && short(p.ImportPath) != "internal/sim" || len(p.GoFiles) == 0 {
			continue
		}
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clock, s.Sel.Name) {
					t.Errorf("%s: %s must not call time.%s: %s", fset.Position(s.Pos()), short(p.ImportPath), s.Sel.Name, "the same must come out of the same, at any time")
				}
				return true
			})
		}
	}
}

// TestPanicsAreInjectedByTestsOnly: no code of the program can inject a panic, so that nothing from
// outside can.
func TestPanicsAreInjectedByTestsOnly(t *testing.T) {
	for _, p := range packages(t) {
		if layerOf[short(p.ImportPath)].testing() {
			continue
		}
		for _, name := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "contain.Inject") {
				t.Errorf("%s/%s must not call contain.Inject: it is for tests", short(p.ImportPath), name)
			}
		}
	}
}

// TestRules checks the rules themselves: each must be able to fail.
func TestRules(t *testing.T) {
	for _, tt := range []struct {
		from, to string
		allowed  bool
	}{
		{"internal/asbr", "internal/lab", false},
		{"internal/asbr", "internal/edge", false},
		{"internal/lab", "internal/report", false},
		{"internal/lab", "internal/config", false},
		{"internal/scenario", "internal/lab", false},
		{"internal/unit", "internal/stat", false},
		{"internal/config", "internal/cli", false},
		{"internal/config", "internal/files", false},
		{"internal/cli", "internal/cli/lab", false},
		{"internal/cli/lab", "internal/cli", true},
		{"internal/cc", "internal/sched", false},
		{"internal/sim", "internal/simrun", false},
		{"internal/simrun", "internal/labrun", false},
		{"internal/channel", "internal/unit", true},
		{"internal/sim", "internal/cc", true},
		{"internal/cli", "cmd/tabane", false},
		{"internal/lab", "internal/scenario", true},
		{"internal/scenario", "internal/asbr", true},
		{"internal/asbr", "internal/daemon", true},
		{"internal/daemon", "internal/bgp", true},
		{"internal/bgp", "internal/srv6", true},
		{"cmd/tabane", "internal/cli", true},
	} {
		if why := upward(tt.from, tt.to); (why == "") != tt.allowed {
			t.Errorf("%s imports %s: allowed %v, got %q", tt.from, tt.to, tt.allowed, why)
		}
	}
	for _, tt := range []struct {
		from, library string
		allowed       bool
	}{
		{"internal/asbr", "github.com/osrg/gobgp/v4/pkg/server", false},
		{"internal/bgp", "github.com/osrg/gobgp/v4/pkg/server", false},
		{"internal/scenario", "github.com/goccy/go-yaml", false},
		{"internal/stat", "os", false},
		{"internal/bgp/message", "net", false},
		{"internal/stat", "math", true},
		{"internal/unit", "time", true},
		{"internal/unit", "math/rand/v2", false},
		{"internal/channel", "math/rand/v2", true},
		{"internal/channel", "os", false},
		{"internal/netns", "os", true},
	} {
		if why := foreign(tt.from, tt.library); (why == "") != tt.allowed {
			t.Errorf("%s imports %s: allowed %v, got %q", tt.from, tt.library, tt.allowed, why)
		}
	}
}

// TestContributingNamesEveryPackage compares CONTRIBUTING.md's table with the table of this test.
func TestContributingNamesEveryPackage(t *testing.T) {
	want := documented()
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`([^`]+)`")
	got := map[string][]string{}
	for _, line := range strings.Split(string(page), "\n") {
		cells := strings.Split(line, " | ")
		if group := strings.TrimPrefix(cells[0], "| "); len(cells) == 3 && want[group] != nil {
			for _, m := range name.FindAllStringSubmatch(cells[1], -1) {
				got[group] = append(got[group], m[1])
			}
		}
	}
	for group, names := range want {
		slices.Sort(got[group])
		if !slices.Equal(got[group], names) {
			t.Errorf("CONTRIBUTING.md, packages of %q: got %q, want %q", group, got[group], names)
		}
	}
}

// TestContributingNamesPlaces: the files and folders of the table "Where to add what" exist.
func TestContributingNamesPlaces(t *testing.T) {
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Where to add what\n")
	section, _, _ = strings.Cut(section, "\n## ")
	places := regexp.MustCompile("`((?:internal|bpf|cmd|scenarios)[^` ]*)`").FindAllStringSubmatch(section, -1)
	if len(places) < 15 {
		t.Errorf("%d places, want at least 15", len(places))
	}
	for _, place := range places {
		if _, err := os.Stat("../../" + place[1]); err != nil {
			t.Errorf("CONTRIBUTING.md: %v", err)
		}
	}
}
