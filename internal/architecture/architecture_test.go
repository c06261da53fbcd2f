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
	"maps"
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

// folder is a capability, or what several of them share. Its packages may import those of the
// folders that it lists, and inside the folder only packages of lower rungs.
type folder struct {
	name  string
	about string // its row of CONTRIBUTING.md
	may   []string
	// because is the reason why nothing else may be imported.
	because string
	// tests are further folders that the tests may import: what measures or emulates a network for
	// them.
	tests []string
	// rungs has every package by its path below the folder, "." for the folder's own, the lowest
	// rung first.
	rungs [][]string
	// pure are the packages without sockets, files, clock or randomness.
	pure []string
	// fakes replace adapters in tests; only tests and other fakes import them.
	fakes []string
}

// folders has every folder of internal/, from the bottom up: a folder may import only some of those
// above it in this list.
var folders = []folder{
	{
		name: "base", about: "values and arithmetic that everything else uses",
		because: "it is pure and knows nothing that uses it",
		rungs:   [][]string{{"ablation", "checksum", "codel", "fault", "feature", "hashtable", "health", "stat", "unit"}, {"field"}},
		pure:    []string{"ablation", "checksum", "codel", "fault", "feature", "hashtable", "health", "stat", "unit", "field"},
	},
	{
		name: "kernel", about: "one interface of the kernel, the process or the service manager each",
		may:     []string{"base"},
		because: "an adapter knows the one outside thing that it adapts, and no capability that uses it",
		rungs: [][]string{
			{"clock"}, {"contain", "database", "handover", "privilege", "realtime", "sighup", "statefile", "systemd"}, {"bpf"},
			{"afpacket", "netns", "nft", "nic", "offload", "route", "seccomp", "sockdiag", "tc"},
		},
		fakes: []string{"bpf/bpftest", "netns/netnstest", "route/routetest", "seccomp/seccomptest"},
	},
	{
		name: "bgp", about: "the BGP speaker: messages, sessions, tables, policies, BFD, RPKI",
		may:     []string{"base", "kernel"},
		because: "a speaker knows no daemon that speaks",
		rungs:   [][]string{{"srv6", "vpn"}, {"message"}, {"bfd", "policy", "rib", "session"}, {"linkstate", "rtr", "."}},
		pure:    []string{"srv6", "vpn", "message", "policy", "rib"},
	},
	{
		name: "mptcp", about: "the kernel's MPTCP: path manager API, MPTCP sockets for programs, congestion control",
		may:     []string{"base", "kernel"},
		because: "it knows no daemon that uses MPTCP",
		rungs:   [][]string{{"cc", "ccbpf", "protocol", "."}, {"congestion", "mptcpify"}},
		pure:    []string{"cc"},
		fakes:   []string{"mptcptest"},
	},
	{
		name: "daemon", about: "what all daemons do around their decisions: the loop, reconciling, the control socket",
		may:     []string{"base", "kernel", "bgp", "mptcp"},
		because: "it is what daemons share, so it knows none of them",
		rungs:   [][]string{{"control", "condition"}, {"."}},
	},
	{
		name: "epe", about: "egress peer engineering: border router, server, reflector, router, path manager, flows",
		may:     []string{"base", "kernel", "bgp", "mptcp", "daemon"},
		because: "it is a capability of its own",
		rungs:   [][]string{{"arrival", "belief", "capacity", "flowcount", "outcome", "selection", "silence", "spray"}, {"flows", "pathmanager", "share"}, {"asbr", "edge", "reflector", "router"}},
		pure:    []string{"arrival", "belief", "capacity", "selection"},
	},
	{
		name: "gateway", about: "a site's gateway: the daemon, its data planes, and what chooses, repairs and paces packets",
		may:     []string{"base", "kernel", "bgp", "daemon"},
		tests:   []string{"experiment", "lab"},
		because: "it is a capability of its own",
		rungs: [][]string{
			{"acks", "handshake", "pacer", "pairing", "pathset", "quality", "quota", "repair", "reseq", "sched", "tun", "tunnel", "udp"},
			{"dataplane", "join"}, {"enroll", "inet", "openbpf", "relay"}, {"openplane", "sealed"}, {"."},
		},
		pure: []string{"acks", "handshake", "inet", "join", "pacer", "pairing", "pathset", "quality", "quota", "repair", "reseq", "sched", "tunnel"},
	},
	{
		name: "proxy", about: "a proxy between TCP and MPTCP: what clients request, where connections go, what carries them",
		may:     []string{"base", "kernel", "mptcp", "daemon"},
		because: "it is a capability of its own",
		rungs:   [][]string{{"choice", "header", "request"}, {"relay"}, {"."}},
		pure:    []string{"choice", "header", "request"},
	},
	{
		name: "study", about: "a study with people: services, ratings, what users experience",
		may:     []string{"base", "kernel", "mptcp"},
		tests:   []string{"lab"},
		because: "people and pages know no network",
		rungs:   [][]string{{"content", "httpd", "qoe"}, {"site"}, {"."}},
		pure:    []string{"content", "qoe"},
	},
	{
		name: "analysis", about: "captures, and traffic that is sent to be measured",
		may:     []string{"base", "kernel", "mptcp", "gateway"},
		because: "it measures traffic without a daemon",
		rungs:   [][]string{{"pcap", "traffic"}, {"capture", "measure"}},
	},
	{
		name: "role", about: "the table of daemons: the only place that names them all",
		may:     []string{"base", "kernel", "daemon", "epe", "gateway", "proxy", "study", "analysis"},
		because: "it knows the daemons, not what starts them",
		rungs:   [][]string{{"."}},
	},
	{
		name: "experiment", about: "what an experiment is, what came out of it, and how that is shown",
		may:     []string{"base", "kernel", "bgp", "mptcp", "epe", "gateway", "study", "analysis", "role"},
		because: "a specification does not know what runs it",
		rungs:   [][]string{{"linkmodel", "result"}, {"measurement", "scenario"}, {"cell", "papers", "report", "worlds"}},
		pure:    []string{"linkmodel", "cell", "papers", "worlds"},
		fakes:   []string{"scenario/scenariotest"},
	},
	{
		name: "sim", about: "the simulator, its runs, and its validation",
		may:     []string{"base", "mptcp", "epe", "gateway", "analysis", "experiment"},
		because: "it needs no kernel",
		rungs:   [][]string{{".", "networks"}, {"simrun"}, {"validate"}},
		pure:    []string{"networks"},
	},
	{
		name: "lab", about: "the same experiments on the kernel, in network namespaces",
		may:     []string{"base", "kernel", "bgp", "mptcp", "daemon", "epe", "gateway", "study", "analysis", "role", "experiment"},
		because: "it does not know the simulator nor the command line",
		rungs:   [][]string{{"browser", "certificate", "emulator", "wire"}, {"."}, {"labrun"}},
		fakes:   []string{"labtest"},
	},
	{
		name: "cli", about: "arguments, files, text on the screen, exit codes",
		may:     []string{"base", "kernel", "bgp", "mptcp", "daemon", "epe", "gateway", "proxy", "study", "analysis", "role", "experiment", "sim", "lab"},
		because: "it is imported by main packages alone",
		rungs:   [][]string{{"config", "dashboard", "doctor"}, {"files", "setup"}, {"."}, {"lab"}},
	},
}

// outside are packages that belong to no folder, and what they are.
var outside = map[string]string{
	"cmd/tabane":                   "main",
	"cmd/tabane-lab":               "main",
	"deploy/debian/manual":         "main",
	"deploy/image":                 "main",
	"scenarios":                    "files that the program ships",
	"internal/acceptance":          "tests of the whole",
	"internal/architecture":        "tests of the whole",
	"internal/testkit/programs":    "finds the programs that tests use",
	"internal/testkit/published":   "tables in documents that tests compare",
	"internal/testkit/accessor":    "calls what decoded values offer",
	"internal/testkit/certificate": "makes certificates for tests",
	"internal/testkit/heap":        "measures the memory of values",
	"internal/testkit/wireguard":   "runs wireguard-go to compare with",
}

// place is where a package belongs.
type place struct {
	folder     *folder
	rung       int
	pure, fake bool
}

// places has every package of the folders.
var places = locate()

func locate() map[string]place {
	all := map[string]place{}
	for i := range folders {
		f := &folders[i]
		full := func(name string) string {
			if name == "." {
				return "internal/" + f.name
			}
			return "internal/" + f.name + "/" + name
		}
		for rung, names := range f.rungs {
			for _, n := range names {
				all[full(n)] = place{folder: f, rung: rung, pure: slices.Contains(f.pure, n)}
			}
		}
		for _, n := range f.fakes {
			all[full(n)] = place{folder: f, rung: len(f.rungs), fake: true}
		}
	}
	return all
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
	{"github.com/goccy/go-yaml", []string{"internal/cli/config", "internal/lab", "internal/experiment/scenario/scenariotest"}, "YAML is read by config alone, which bounds and places everything"},
	{"github.com/cilium/ebpf", []string{"internal/kernel/bpf", "internal/kernel/bpf/bpftest", "internal/epe/flowcount", "internal/epe/outcome", "internal/epe/silence", "internal/epe/spray", "internal/mptcp/protocol", "internal/mptcp/ccbpf", "internal/gateway/openbpf", "internal/gateway/relay", "internal/lab/wire"}, "programs and maps are behind bpf, so that an engine is tested without a kernel"},
	{"github.com/gomodule/redigo", []string{"internal/epe/share"}, "the store of a site is behind share, which bounds what it answers"},
	{"github.com/quic-go", []string{"internal/cli/lab"}, "HTTP/3 is something to measure with, and no program on a production host has it"},
	{"github.com/google/nftables", []string{"internal/kernel/nft"}, "nf_tables is nft's"},
	{"github.com/spf13/cobra", []string{"internal/cli", "internal/cli/lab", "deploy/debian/manual"}, "flags are the command line's"},
	{"github.com/google/go-containerregistry", []string{"deploy/image"}, "an image is something to build"},
	{"modernc.org/sqlite", []string{"internal/kernel/database"}, "files of SQLite are behind database, which names their errors"},
	{"github.com/flynn/noise", []string{"internal/gateway/handshake", "internal/gateway/join"}, "the handshake of gateways is behind handshake, the exchange before it behind join"},
	{"golang.zx2c4.com/wireguard", []string{"internal/testkit/wireguard"}, "wireguard-go is something for benchmarks to compare with; the TUN device is tun"},
	{"github.com/chromedp", []string{"internal/lab/browser"}, "it tests the dashboard's page; what measures pages is browser, which has the types of HAR from it (docs/adr/0020)"},
	{"github.com/gopacket/gopacket", nil, "captures are read and written by pcap; gopacket is something for tests to compare with"},
	{"gonum.org/v1/plot", []string{"internal/experiment/report"}, "figures are report's"},
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

// forTests reports whether a package is used by tests only.
func forTests(name string) bool {
	return places[name].fake || strings.HasPrefix(name, "internal/testkit/")
}

// above reports whether the folder a stands above b.
func above(a, b *folder) bool {
	at := func(f *folder) int { return slices.IndexFunc(folders, func(o folder) bool { return o.name == f.name }) }
	return at(a) > at(b)
}

// upward says why from may not import to, or nothing.
func upward(from, to string) string {
	a, known := places[from]
	b, also := places[to]
	switch {
	case !known && also && b.fake && from != "internal/acceptance":
		return fmt.Sprintf("%s must not import %s, which is for tests", from, to)
	case !also && known && strings.HasPrefix(to, "cmd/"):
		return fmt.Sprintf("%s must not import %s: nothing imports a main package", from, to)
	case !known || !also:
		return ""
	case a.folder != b.folder && !slices.Contains(a.folder.may, b.folder.name):
		return fmt.Sprintf("%s must not import %s: %s may import %s only: %s", from, to, a.folder.name, strings.Join(a.folder.may, ", "), a.folder.because)
	case a.folder == b.folder && from != to && a.rung <= b.rung:
		return fmt.Sprintf("%s must not import %s, which is not on a lower rung of %s", from, to, a.folder.name)
	}
	return ""
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
	p := places[from]
	seeded := p.pure && p.folder.name != "base" && library == "math/rand/v2"
	if p.pure && slices.Contains(impure, library) && !seeded {
		return fmt.Sprintf("%s must not import %s: it is pure", from, library)
	}
	return ""
}

func TestImportsGoDownward(t *testing.T) {
	for _, p := range packages(t) {
		from := short(p.ImportPath)
		for _, i := range p.Imports {
			to := short(i)
			if why := upward(from, to); why != "" {
				t.Error(why)
			}
			if why := foreign(from, i); why != "" {
				t.Error(why)
			}
			if forTests(to) && !forTests(from) {
				t.Errorf("%s must not import %s, which is for tests", from, to)
			}
		}
		// A test may use packages of its own rung, of folders below, and fakes.
		for _, i := range slices.Concat(p.TestImports, p.XTestImports) {
			a, known := places[from]
			b, also := places[short(i)]
			if known && also && !b.fake && from != short(i) && !slices.Contains(a.folder.tests, b.folder.name) && (a.folder == b.folder && a.rung < b.rung || above(b.folder, a.folder)) {
				t.Errorf("the tests of %s must not import %s, which is above", from, short(i))
			}
		}
	}
}

// TestFolders: a folder imports only folders before it in the list, so that there are no circles.
func TestFolders(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range folders {
		for _, name := range f.may {
			if !seen[name] {
				t.Errorf("%s may import %s, which does not stand before it in the list", f.name, name)
			}
		}
		seen[f.name] = true
		used := map[string]bool{}
		for _, p := range packages(t) {
			if places[short(p.ImportPath)].folder == nil || places[short(p.ImportPath)].folder.name != f.name {
				continue
			}
			for _, i := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
				if to := places[short(i)].folder; to != nil {
					used[to.name] = true
				}
			}
		}
		for _, name := range f.may {
			if !used[name] {
				t.Errorf("%s may import %s, and nothing in it does: narrow the table", f.name, name)
			}
		}
	}
}

func TestEveryPackageHasItsPlace(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range packages(t) {
		name := short(p.ImportPath)
		seen[name] = true
		if _, ok := places[name]; !ok && outside[name] == "" {
			t.Errorf("%s has no place: choose a folder and a rung in the table folders of this test, and run go test ./internal/architecture -update", name)
		}
		switch path.Base(name) {
		case "util", "utils", "common", "helper", "helpers", "misc", "shared", "lib", "types":
			t.Errorf("%s is named after nothing: name a package for what it is about", name)
		}
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment: say in one what it does and what it refuses to do", name)
		}
		if len(p.GoFiles) > 0 && p.Name != "main" && !strings.HasPrefix(p.Doc, "Package "+p.Name+" ") {
			t.Errorf("the package comment of %s must begin with %q", name, "Package "+p.Name)
		}
	}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(places)), slices.Collect(maps.Keys(outside))) {
		if !seen[name] {
			t.Errorf("%s is in a table of this test, but not in the module", name)
		}
	}
}

// unlinked are libraries and packages that the program tabane does not have, because hosts of a
// network do not need them: they are of tabane-lab.
var unlinked = []string{
	"modernc.org/sqlite", "gonum.org/v1/plot", "github.com/chromedp",
	module + "/scenarios", module + "/internal/lab/browser", module + "/internal/cli/lab", module + "/internal/cli/files", module + "/internal/lab",
	module + "/internal/lab/labrun", module + "/internal/experiment/report", module + "/internal/experiment/result", module + "/internal/experiment/scenario",
	module + "/internal/sim", module + "/internal/sim/simrun", module + "/internal/study", module + "/internal/sim/validate",
}

// unlinkedByBoth are libraries that only tests and the making of packages use.
var unlinkedByBoth = []string{"github.com/gopacket", "github.com/spf13/cobra/doc"}

// configurations are packages of unlinked folders that both programs have, because tabane checks
// the configuration of every daemon. They only describe it.
var configurations = []string{module + "/internal/study/httpd"}

// TestProductHasNoLaboratory: what the program tabane links is for hosts of a network, and
// tabane-lab has the rest.
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
	for _, c := range configurations {
		if !slices.Contains(product, c) {
			t.Errorf("the program tabane does not have %s: remove it from configurations", c)
		}
	}
	for _, library := range unlinked {
		of := func(i string) bool {
			return (i == library || strings.HasPrefix(i, library+"/")) && !slices.Contains(configurations, i)
		}
		if i := slices.IndexFunc(product, of); i >= 0 {
			t.Errorf("the program tabane must not have %s: it is of tabane-lab", product[i])
		}
		if !slices.ContainsFunc(laboratory, of) {
			t.Errorf("the program tabane-lab has nothing of %s either", library)
		}
	}
	for _, i := range slices.Concat(product, laboratory) {
		if slices.ContainsFunc(unlinkedByBoth, func(library string) bool { return i == library || strings.HasPrefix(i, library+"/") }) {
			t.Errorf("no program must have %s", i)
		}
	}
}

// TestPanicsAreInjectedByTestsOnly: no code of the program can inject a panic, so that nothing from
// outside can.
func TestPanicsAreInjectedByTestsOnly(t *testing.T) {
	for _, p := range packages(t) {
		if forTests(short(p.ImportPath)) {
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

// TestModelsReadNoClock checks what the import of "time" does not show: foundation and models get
// time as an argument, and the simulator has its own.
func TestModelsReadNoClock(t *testing.T) {
	clock := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	for _, p := range packages(t) {
		if !places[short(p.ImportPath)].pure && short(p.ImportPath) != "internal/sim" || len(p.GoFiles) == 0 {
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

// TestRules checks the rules themselves: each must be able to fail.
func TestRules(t *testing.T) {
	for _, tt := range []struct {
		from, to string
		allowed  bool
	}{
		{"internal/epe/asbr", "internal/lab", false},
		{"internal/epe/asbr", "internal/epe/edge", false},
		{"internal/epe/edge", "internal/gateway/tunnel", false},
		{"internal/gateway", "internal/epe/edge", false},
		{"internal/gateway/sched", "internal/gateway/sealed", false},
		{"internal/lab", "internal/sim", false},
		{"internal/lab", "internal/cli/config", false},
		{"internal/experiment/scenario", "internal/lab", false},
		{"internal/base/unit", "internal/base/stat", false},
		{"internal/cli/config", "internal/cli", false},
		{"internal/mptcp/cc", "internal/gateway/sched", false},
		{"internal/sim", "internal/sim/simrun", false},
		{"internal/sim/simrun", "internal/lab/labrun", false},
		{"internal/cli", "cmd/tabane", false},
		{"internal/experiment/linkmodel", "internal/base/unit", true},
		{"internal/sim", "internal/mptcp/cc", true},
		{"internal/lab", "internal/experiment/scenario", true},
		{"internal/experiment/scenario", "internal/epe/asbr", true},
		{"internal/epe/asbr", "internal/daemon", true},
		{"internal/daemon", "internal/bgp", true},
		{"internal/bgp", "internal/bgp/srv6", true},
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
		{"internal/epe/asbr", "github.com/osrg/gobgp/v4/pkg/server", false},
		{"internal/bgp", "github.com/osrg/gobgp/v4/pkg/server", false},
		{"internal/experiment/scenario", "github.com/goccy/go-yaml", false},
		{"internal/base/stat", "os", false},
		{"internal/bgp/message", "net", false},
		{"internal/base/stat", "math", true},
		{"internal/base/unit", "time", true},
		{"internal/base/unit", "math/rand/v2", false},
		{"internal/experiment/linkmodel", "math/rand/v2", true},
		{"internal/experiment/linkmodel", "os", false},
		{"internal/kernel/netns", "os", true},
	} {
		if why := foreign(tt.from, tt.library); (why == "") != tt.allowed {
			t.Errorf("%s imports %s: allowed %v, got %q", tt.from, tt.library, tt.allowed, why)
		}
	}
}

// TestContributing compares CONTRIBUTING.md's table with the table of this test; -update writes it.
func TestContributing(t *testing.T) {
	const file = "../../CONTRIBUTING.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	table := regexp.MustCompile(`(?m)^\| folder \| what is in it \|.*\n(\|.*\n)+`)
	if !table.Match(page) {
		t.Fatal("CONTRIBUTING.md has no table of folders")
	}
	want := table.ReplaceAllLiteral(page, []byte(contributing()))
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(want) != string(page) {
		t.Error("the table of folders in CONTRIBUTING.md is stale; write it by: go test ./internal/architecture -update")
	}
}

// contributing is the table of folders, from the command line down.
func contributing() string {
	var b strings.Builder
	b.WriteString("| folder | what is in it | packages, the lowest first | imports |\n|---|---|---|---|\n")
	for _, f := range slices.Backward(folders) {
		var names []string
		for _, rung := range f.rungs {
			var on []string
			for _, n := range rung {
				on = append(on, "`"+strings.Replace(n, ".", f.name, 1)+"`")
			}
			names = append(names, strings.Join(on, ", "))
		}
		imports := "nothing of tabane"
		if len(f.may) > 0 {
			imports = strings.Join(f.may, ", ")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, f.about, strings.Join(names, "; "), imports)
	}
	return b.String()
}
