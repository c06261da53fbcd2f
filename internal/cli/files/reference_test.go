package files

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	goyaml "github.com/goccy/go-yaml/ast"

	"github.com/tabane/tabane/internal/base/field"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/cli/config"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/role"
)

var update = flag.Bool("update", false, "write reference.json and docs/reference.md")

const referenceFile, referencePage = "../config/reference.json", "../../../docs/reference.md"

// TestReference compares the reference with the structs and their comments.
func TestReference(t *testing.T) {
	groups := generate(t)
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(groups); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]byte{referenceFile: b.Bytes(), referencePage: page(groups)} {
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is stale: go generate ./internal/cli/config", path)
		}
	}
}

// TestFind looks up keys by paths as users write them.
func TestFind(t *testing.T) {
	for path, want := range map[string]string{
		"edge.mptcp.best_path":                  "best_path",
		"edge.peers[1].rt":                      "rt",
		"nodes.server.edge.mptcp.subflows":      "subflows",
		"nodes.edge.mptcp":                      "mptcp",
		"links.a.rate":                          "rate",
		"links.rate":                            "rate",
		"experiment.cases[0].links.a.loss.kind": "kind",
		"experiment.transports.tcp.scheduler":   "scheduler",
		"nodes.server":                          "nodes",
	} {
		if k, _, err := config.Find(path); err != nil || k.Name != want {
			t.Errorf("%s: got %q, %v", path, k.Name, err)
		}
	}
	for path, want := range map[string]string{
		"egde":               `did you mean "edge"`,
		"edge.mptpc":         `edge has no key "mptpc", did you mean "mptcp"`,
		"edge.asn.x":         `"edge.asn" has no keys`,
		"nodes.server.x.asn": "nodes.server has no key",
		"edge..asn":          "edge has no key",
	} {
		if _, _, err := config.Find(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
	if _, below, err := config.Find(""); err != nil || len(below) < 10 {
		t.Errorf("got %d keys, %v", len(below), err)
	}
}

// generator reads types, comments and examples.
type generator struct {
	t *testing.T
	// comments has the comments of struct fields by "package.Type.Field".
	comments map[string]string
	parsed   map[string]bool
	// examples has values from the embedded files by "package.Type.Field".
	examples map[string]string
	groups   []config.Group
	names    map[reflect.Type]string
}

func generate(t *testing.T) []config.Group {
	g := &generator{t: t, comments: map[string]string{}, parsed: map[string]bool{}, examples: map[string]string{}, names: map[reflect.Type]string{}}
	for _, daemon := range []string{role.ASBR, role.Edge, role.Gateway, "leader", "member", "home-agent", role.Reflector, role.Site, "study", role.Proxy} {
		g.readExamples("../../../examples/" + daemon + ".yaml")
	}
	files, err := filepath.Glob("../../../scenarios/*/scenario.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, file := range files {
		g.readExamples(file)
	}
	g.group(reflect.TypeFor[role.Sections](), config.DaemonFile, "")
	g.group(reflect.TypeFor[scenario.Spec](), config.ScenarioFile, "")
	g.group(reflect.TypeFor[studyFile](), config.StudyFile, "")
	return g.groups
}

// group adds the group of a struct and those below it, and returns its name.
func (g *generator) group(typ reflect.Type, name, path string) string {
	if known, ok := g.names[typ]; ok {
		return known
	}
	g.names[typ] = name
	at := len(g.groups)
	g.groups = append(g.groups, config.Group{Name: name})
	var keys []config.Key
	g.eachField(typ, func(key, field string, required bool, inner reflect.Type) {
		below := key
		if path != "" {
			below = path + "." + key
		}
		keys = append(keys, g.key(below, key, field, required, inner))
	})
	g.groups[at].Keys = keys
	return name
}

// eachField calls f for every key of a struct, including those of inlined structs.
func (g *generator) eachField(typ reflect.Type, f func(key, field string, required bool, inner reflect.Type)) {
	g.parse(typ.PkgPath())
	for i := range typ.NumField() {
		field := typ.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		switch {
		case !field.IsExported() || name == "-":
		case name == "":
			g.eachField(field.Type, f)
		default:
			f(name, typ.PkgPath()+"."+typ.Name()+"."+field.Name, options != "omitempty", field.Type)
		}
	}
}

var (
	defaultOf = regexp.MustCompile(`\s*Default: (.+?)(?:\.( [A-Z])|\.?$)`)
	exampleOf = regexp.MustCompile(`\s*Example: (.+)$`)
)

func (g *generator) key(path, name, field string, required bool, typ reflect.Type) config.Key {
	text := g.comments[field]
	if text == "" {
		g.t.Errorf("%s: %s has no comment that says what it means", path, field)
	}
	k := config.Key{Name: name, Example: g.examples[field]}
	if m := exampleOf.FindStringSubmatch(text); m != nil {
		text = strings.TrimSuffix(text, m[0])
		if k.Example == "" {
			k.Example = m[1]
		}
	}
	k.Default = "none"
	switch {
	case required:
		k.Default = "required"
	case typ.Kind() == reflect.Bool:
		k.Default = "false"
	}
	if m := defaultOf.FindStringSubmatchIndex(text); m != nil {
		k.Default = text[m[2]:m[3]]
		text = text[:m[0]] + strings.TrimPrefix(text[m[3]:], ".")
	}
	// "Address is the ..." reads "The ...".
	field = field[strings.LastIndex(field, ".")+1:]
	text = strings.TrimPrefix(text, field+" ")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "is "), "are ")
	if text != "" {
		k.Meaning = strings.ToUpper(text[:1]) + text[1:]
	}
	k.Type = g.typeName(path, typ, &k)
	switch {
	case k.Example != "" || k.Group != "":
	case typ.Kind() == reflect.Bool:
		k.Example = "true"
	case k.Default != "none" && k.Default != "required" && !strings.Contains(k.Default, " "):
		k.Example = k.Default
	}
	if k.Group == "" && k.Example == "" {
		g.t.Errorf(`%s: no file that comes with the program has the key: write "Example: ..." into the comment of its field`, path)
	}
	return k
}

// typeName returns the name of a type in the reference, and sets the group of k.
func (g *generator) typeName(path string, typ reflect.Type, k *config.Key) string {
	if name, ok := map[reflect.Type]string{
		reflect.TypeFor[time.Duration](): "duration", reflect.TypeFor[unit.Bandwidth](): "bandwidth", reflect.TypeFor[unit.Size](): "size",
	}[typ]; ok {
		return name
	}
	switch typ.String() {
	case "netip.Addr":
		return "address"
	case "netip.Prefix":
		return "prefix"
	case "netip.AddrPort":
		return "address and port"
	case "vpn.ID":
		return "route target or distinguisher"
	}
	if typ.Kind() != reflect.Struct && reflect.PointerTo(typ).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return "text"
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return g.typeName(path, typ.Elem(), k)
	case reflect.Slice:
		return "list of " + plural(g.typeName(path+"[]", typ.Elem(), k))
	case reflect.Map:
		inner := g.typeName(path+".NAME", typ.Elem(), k)
		k.Named = k.Group != ""
		return "name: " + inner
	case reflect.Struct:
		if !field.IsScalar(typ) {
			k.Group = g.group(typ, path, path)
			if field.HasShort(typ) {
				return "mapping or text"
			}
			return "mapping"
		}
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "number"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "whole number"
	}
	return "text"
}

func plural(s string) string {
	switch {
	case s == "text":
		return "texts"
	case strings.HasSuffix(s, "ss"), strings.HasSuffix(s, "x"):
		return s + "es"
	}
	return s + "s"
}

// parse reads the comments of a package's structs.
func (g *generator) parse(pkg string) {
	if g.parsed[pkg] {
		return
	}
	g.parsed[pkg] = true
	files, err := filepath.Glob(filepath.Join("../../..", strings.TrimPrefix(pkg, "github.com/tabane/tabane/"), "*.go"))
	if err != nil {
		g.t.Fatal(err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			g.t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range s.Fields.List {
					for _, name := range f.Names {
						g.comments[pkg+"."+spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
					}
				}
			}
			return true
		})
	}
}

// readExamples records for each key its first value in a file.
func (g *generator) readExamples(path string) {
	data, err := os.ReadFile(path)
	if err != nil {
		g.t.Fatal(err)
	}
	file, err := Parse(path, data)
	if err != nil {
		g.t.Fatal(err)
	}
	places := map[string]goyaml.Node{}
	if err := reader.Places(path, data, func(at string, value goyaml.Node) { places[at] = value }); err != nil {
		g.t.Fatal(err)
	}
	switch {
	case file.Scenario != nil:
		g.walk(places, "", reflect.ValueOf(file.Scenario))
	case file.Study != nil:
		g.walk(places, "", reflect.ValueOf(studyFile{file.Study}))
	default:
		g.walk(places, "", reflect.ValueOf(&file.Sections))
	}
}

func (g *generator) walk(places map[string]goyaml.Node, path string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			g.walk(places, path, v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			g.walk(places, fmt.Sprintf("%s[%d]", path, i), v.Index(i))
		}
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, k := range keys {
			g.walk(places, strings.TrimPrefix(path+"."+k.String(), "."), v.MapIndex(k))
		}
	case reflect.Struct:
		if field.IsScalar(v.Type()) {
			return
		}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			below := strings.TrimPrefix(path+"."+name, ".")
			if name == "" {
				below = path
			} else if value, ok := places[below]; ok && f.IsExported() {
				id := v.Type().PkgPath() + "." + v.Type().Name() + "." + f.Name
				if text, ok := flow(value); ok && g.examples[id] == "" {
					g.examples[id] = text
				}
			}
			if f.IsExported() && name != "-" {
				g.walk(places, below, v.Field(i))
			}
		}
	}
}

// flow returns a value as written in the file if it fits on a line.
func flow(n goyaml.Node) (string, bool) {
	const most = 60
	switch n := n.(type) {
	case *goyaml.SequenceNode:
		if !n.IsFlowStyle {
			return "", false
		}
	case *goyaml.MappingNode:
		if !n.IsFlowStyle {
			return "", false
		}
	case *goyaml.MappingValueNode, *goyaml.LiteralNode:
		return "", false
	}
	text, _, _ := strings.Cut(n.String(), " #")
	text = strings.TrimSpace(text)
	return text, text != "" && len(text) <= most && !strings.Contains(text, "\n")
}

// page returns the content of docs/reference.md.
func page(groups []config.Group) []byte {
	var b bytes.Buffer
	b.WriteString(`# Reference of configuration and scenario files

Written by ` + "`go generate ./internal/cli/config`" + ` from the source; do not edit. ` + "`tabane help config KEY`" + ` prints the same for
one key, and ` + "`tabane check -c FILE`" + ` checks a file against it.

A file is YAML and decoded strictly: an unknown key is an error with its line and column. Values: a duration is ` + "`50ms`, `1m30s`" + `; a
bandwidth ` + "`30Mbit/s`" + `; a size ` + "`100MB` or `64KiB`" + `; an address and port ` + "`\"[::1]:9117\"`" + `. NAME stands for a name of your choice.
`)
	for _, g := range groups {
		title := "`" + g.Name + "`"
		switch g.Name {
		case config.DaemonFile:
			title = "A daemon's file"
		case config.ScenarioFile:
			title = "A scenario"
		}
		fmt.Fprintf(&b, "\n## %s\n\n| key | type | default | meaning | example |\n|---|---|---|---|---|\n", title)
		for _, k := range g.Keys {
			typ := k.Type
			if k.Group != "" {
				typ += " ([keys](#" + anchor(k.Group) + "))"
			}
			example := ""
			if k.Example != "" {
				example = "`" + k.Example + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", k.Name, typ, cell(k.Default), cell(k.Meaning), strings.ReplaceAll(example, "|", `\|`))
		}
	}
	return b.Bytes()
}

func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "*", `\*`).Replace(s)
}

// anchor returns the fragment identifier that GitHub derives from a heading.
func anchor(heading string) string {
	return regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(heading), "")
}
