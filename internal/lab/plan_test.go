package lab

import (
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/reflector"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab/labtest"
	"github.com/tabane/tabane/internal/role"
)

func TestCheckName(t *testing.T) {
	for name, good := range map[string]bool{
		"epe-steady": true, "epe-steady.2": true, "a": true, strings.Repeat("a", 48): true,
		"": false, ".": false, "..": false, "a/b": false, "A": false, "-a": false, "a-": false, "a b": false, "ä": false,
		strings.Repeat("a", 49): false, "a\n": false, ".new": false,
	} {
		if err := CheckName(name); (err == nil) != good {
			t.Errorf("CheckName(%q) = %v", name, err)
		}
	}
}

func TestPlan(t *testing.T) {
	s := labtest.Routed()
	s.Nodes["a"].Serve = &traffic.Config{Port: 80}
	s.Nodes["a"].Reflector = &reflector.Config{
		ASN: 65002, RouterID: netip.MustParseAddr("10.0.0.2"), Address: netip.MustParseAddr("2001:db8:1::a"),
		Clients: []reflector.Client{{Name: "c", Address: netip.MustParseAddr("2001:db8:1::c")}},
		Status:  netip.MustParseAddrPort("127.0.0.1:7"),
	}
	p, err := newPlan("x.2", s)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.namespaces(), []string{"tabane-x.2-a", "tabane-x.2-b", "tabane-x.2-c", "tabane-x.2-sw-lan"}; !slices.Equal(got, want) {
		t.Errorf("namespaces %q, want %q", got, want)
	}
	want := "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n2001:db8:2::a a\n2001:db8:2::b b\n2001:db8:2::c c\n"
	if p.hosts != want {
		t.Errorf("hosts %q, want %q", p.hosts, want)
	}
	var commands []string
	for _, d := range p.daemons() {
		commands = append(commands, d.String()+" "+strings.Join(d.arguments("/d"), " "))
	}
	wantCommands := []string{"a (reflector) reflector -c /d/a.yaml", "b (router) router -c /d/b.yaml", "a (serve) serve -c /d/a.yaml"}
	if !slices.Equal(commands, wantCommands) {
		t.Errorf("daemons %q, want %q", commands, wantCommands)
	}
	if got := p.nodes[0].daemons[0].status.String(); got != "127.0.0.1:7" {
		t.Errorf("reflector's status at %s, want its own choice", got)
	}
	if got := p.nodes[1].daemons[0].status.String(); got != "[::1]:9118" {
		t.Errorf("router's status at %s, want the default", got)
	}
	if !slices.Equal(p.congestion, []string{"cubic", "reno"}) {
		t.Errorf("congestion controls %q", p.congestion)
	}
	if got := p.nodes[0].late; !slices.Equal(got, []sysctl{{"net.ipv6.conf.wire.hop_limit", "77"}}) {
		t.Errorf("late sysctls %v", got)
	}
	lan, wire := p.links[0], p.links[1]
	if len(lan.wires) != 3 || lan.wires[2].b.netns != "tabane-x.2-sw-lan" || lan.mtu != 1500 {
		t.Errorf("switch %+v", lan)
	}
	if len(wire.wires) != 1 || wire.netns != "" || wire.mtu != 1400 {
		t.Errorf("wire %+v", wire)
	}
}

func TestPlanRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		lab    string
		change func(*scenario.Spec)
		want   string
	}{
		"lab name":     {"../x", func(*scenario.Spec) {}, "lab name must be"},
		"bad scenario": {"x", func(s *scenario.Spec) { s.Links["wire"].Ends[0].Node = "nobody" }, "nobody"},
		"node called as a switch": {"x", func(s *scenario.Spec) {
			s.Nodes["sw-lan"] = &scenario.Node{}
			s.Links["wire"].Ends[0].Node = "sw-lan"
		}, `two parts of the scenario need the namespace "tabane-x-sw-lan"`},
		"too long": {strings.Repeat("x", 40), func(s *scenario.Spec) {
			long := strings.Repeat("n", 40)
			s.Nodes[long] = &scenario.Node{}
			s.Links["wire"].Ends[0].Node = long
		}, "more than 64"},
	} {
		t.Run(name, func(t *testing.T) {
			s := labtest.Plain()
			s.Nodes["a"].Sysctls = nil
			c.change(s)
			if _, err := newPlan(c.lab, s); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestPerInterface(t *testing.T) {
	for key, want := range map[string]bool{
		"net.ipv6.conf.eth0.hop_limit": true, "net/ipv6/neigh/eth0.5/retrans_time_ms": true, "net.ipv6.conf.eth0.100.forwarding": true,
		"net.ipv6.conf.all.forwarding": false, "net.ipv4.conf.default.rp_filter": false, "net.ipv6.conf.lo.forwarding": false,
		"net.ipv4.tcp_rmem": false, "net": false, "": false, "net.core.conf": false,
	} {
		if got := perInterface(key); got != want {
			t.Errorf("perInterface(%q) = %v", key, got)
		}
	}
}

// The configuration files of the daemons must have the values of the scenario, with explicit status
// addresses.
func TestConfigSurvives(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range []string{"epe-steady", "gateway-pair", "gateway-alliance", "proxy-sites", "webqoe"} {
		b, err := os.ReadFile("../../scenarios/" + name + "/scenario.yaml")
		if err != nil {
			t.Fatal(err)
		}
		var spec scenario.Spec
		if err := yaml.UnmarshalWithOptions(b, &spec, yaml.Strict()); err != nil {
			t.Fatal(err)
		}
		p, err := newPlan("x", &spec)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range p.nodes {
			survives(t, n, seen)
		}
	}
	if len(seen) != len(role.All()) {
		t.Errorf("only %v are tested", seen)
	}
}

// survives checks the file of a node, and records the daemons in it.
func survives(t *testing.T, n *node, seen map[string]bool) {
	t.Helper()
	b, err := n.config()
	if err != nil {
		t.Fatal(err)
	}
	var got role.Sections
	if err := yaml.UnmarshalWithOptions(b, &got, yaml.Strict()); err != nil {
		t.Fatalf("%v in\n%s", err, b)
	}
	for _, d := range n.spec.Sections.Present() {
		seen[d.Name] = true
		if d.In(&got) == nil {
			t.Errorf("node %s: no section %s in\n%s", n.name, d.Name, b)
			continue
		}
		if at := d.Status(&got); at != d.DefaultStatus() {
			t.Errorf("node %s: status of %s at %s", n.name, d.Name, at)
		}
		if got := d.WithStatus(&got, netip.AddrPort{}); !reflect.DeepEqual(got, d.In(&n.sections)) {
			t.Errorf("node %s: got %+v, want %+v", n.name, got, d.In(&n.sections))
		}
	}
	if len(got.Present()) != len(n.spec.Sections.Present()) {
		t.Errorf("node %s: sections of others in\n%s", n.name, b)
	}
}

func TestEncode(t *testing.T) {
	type inner struct {
		Wait time.Duration  `yaml:"wait"`
		Rate unit.Bandwidth `yaml:"rate"`
		Skip string         `yaml:"-"`
	}
	type Inlined struct {
		Seed uint64 `yaml:"seed"`
	}
	b, err := encode(map[string]any{"x": &struct {
		Inlined `yaml:",inline"`
		On      bool     `yaml:"on"`
		Off     bool     `yaml:"off,omitempty"`
		Inner   []*inner `yaml:"inner"`
	}{Inlined: Inlined{7}, On: true, Inner: []*inner{{Wait: time.Second, Rate: 5e6, Skip: "s"}}}})
	if want := `{"x":{"inner":[{"rate":"5Mbit/s","wait":"1s"}],"on":true,"seed":7}}`; err != nil || strings.Join(strings.Fields(string(b)), "") != want {
		t.Errorf("got %s, %v, want %s", b, err, want)
	}
	for _, bad := range []any{struct{ NoKey int }{1}, struct {
		C chan int `yaml:"c"`
	}{make(chan int)}} {
		if _, err := encode(map[string]any{"x": bad}); err == nil || !strings.Contains(err.Error(), "BUG") {
			t.Errorf("%T: got %v", bad, err)
		}
	}
}
