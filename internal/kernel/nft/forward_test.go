package nft

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// between are the interfaces of these tests.
var between = []string{"lan", "wan"}

// blocking runs commands in a namespace and checks which chains are found, and that none is after
// the command that accepts the packets has been run.
func blocking(t *testing.T, family, want string, commands ...*exec.Cmd) {
	t.Helper()
	ns := netnstest.New(t)
	if _, err := netnstest.TryIP(t, ns, "link add lan type veth peer name lanx; link add wan type veth peer name wanx"); err != nil {
		t.Fatal(err)
	}
	netnstest.Do(t, ns, func() error {
		for _, c := range commands {
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v: %v: %s", c.Args, err, out)
			}
		}
		found, err := Blocking(between, family)
		var got []string
		for _, c := range found {
			got = append(got, c.String())
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("found %q, want %q", got, want)
		}
		for _, c := range found {
			if out, err := exec.Command("sh", "-c", c.Accept(between)).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", c.Accept(between), err, out)
			}
		}
		if len(found) > 0 && err == nil {
			if found, err = Blocking(between, family); len(found) > 0 {
				t.Errorf("found %v after the remedy", found)
			}
		}
		return err
	})
}

// TestBlocking: chains that drop all new connections between two interfaces are found, those that
// may accept some are not.
func TestBlocking(t *testing.T) {
	nft := programs.Need(t, "nft")
	const base = "chain c { type filter hook forward priority 0; policy "
	for name, tt := range map[string]struct {
		rules string
		want  string
	}{
		"accepts":             {base + "accept; }", ""},
		"policy":              {base + "drop; }", "inet fw c"},
		"another hook":        {"chain c { type filter hook input priority 0; policy drop; }", ""},
		"drop of all":         {base + "accept; counter drop; }", "inet fw c"},
		"reject":              {base + `accept; iifname "wan" reject; }`, "inet fw c"},
		"drop of some":        {base + "accept; tcp dport 25 drop; ct state invalid drop; }", ""},
		"established alone":   {base + "drop; ct state established,related accept; }", "inet fw c"},
		"new ones, too":       {base + "drop; ct state established,related,new accept; }", ""},
		"others":              {base + `drop; iifname "docker0" accept; oifname "docker0" accept; }`, "inet fw c"},
		"ours":                {base + `drop; iifname "lan" accept; }`, ""},
		"by number":           {base + `drop; oif "wan" accept; }`, ""},
		"all but another":     {base + `drop; iifname != "docker0" accept; }`, ""},
		"some of ours":        {base + "drop; ip6 daddr 2001:db8::/32 accept; }", ""},
		"chain that accepts":  {`chain d { ip daddr 192.0.2.0/24 accept; }; ` + base + "drop; jump d; }", ""},
		"chain of docker":     {`chain d { ct state established accept; return; }; ` + base + `drop; jump d; oifname "docker0" jump d; }`, "inet fw c"},
		"chain that drops":    {`chain d { drop; }; ` + base + "accept; jump d; }", "inet fw c"},
		"chain drops a part":  {`chain d { drop; }; ` + base + "accept; tcp dport 25 jump d; }", ""},
		"map":                 {base + "drop; ct state vmap { established : accept, new : accept }; }", ""},
		"accepted, then drop": {base + `accept; iifname "lan" accept; drop; }`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := exec.Command(nft, "-f", "-")
			c.Stdin = strings.NewReader("table inet fw {\n" + strings.ReplaceAll(tt.rules, ";", "\n") + "\n}\n")
			blocking(t, "ip6", tt.want, c)
		})
	}
	t.Run("the other family", func(t *testing.T) {
		c := exec.Command(nft, "-f", "-")
		c.Stdin = strings.NewReader("table ip fw {\n" + strings.ReplaceAll(base+"drop; }", ";", "\n") + "\n}\n")
		blocking(t, "ip6", "", c)
	})
}

// TestBlockingLegacy is TestBlocking for the rules of iptables, in both forms.
func TestBlockingLegacy(t *testing.T) {
	programs.Need(t, "nft") // of the remedies
	legacy4 := programs.Need(t, "iptables-legacy")
	legacy6 := programs.Need(t, "ip6tables-legacy")
	nft4 := programs.Need(t, "iptables-nft")
	nft6 := programs.Need(t, "ip6tables-nft")
	kinds := []struct {
		family, chain string
		command       func(arguments ...string) *exec.Cmd
	}{
		{"ip", "iptables-legacy", func(a ...string) *exec.Cmd { return exec.Command(legacy4, a...) }},
		{"ip6", "ip6tables-legacy", func(a ...string) *exec.Cmd { return exec.Command(legacy6, a...) }},
		{"ip", "ip", func(a ...string) *exec.Cmd { return exec.Command(nft4, a...) }},
		{"ip6", "ip6", func(a ...string) *exec.Cmd { return exec.Command(nft6, a...) }},
	}
	for name, tt := range map[string]struct {
		rules string
		want  bool
	}{
		"accepts":           {"-P FORWARD ACCEPT", false},
		"policy":            {"-P FORWARD DROP", true},
		"established alone": {"-P FORWARD DROP; -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", true},
		"state alone":       {"-P FORWARD DROP; -A FORWARD -m state --state ESTABLISHED -j ACCEPT", true},
		"new ones, too":     {"-P FORWARD DROP; -A FORWARD -i lan -m conntrack --ctstate NEW -j ACCEPT", false},
		"docker":            {"-P FORWARD DROP; -N DOCKER; -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; -A FORWARD -i docker0 -j ACCEPT; -A FORWARD -j DOCKER", true},
		"ours":              {"-P FORWARD DROP; -A FORWARD -i lan -j ACCEPT", false},
		"reject":            {"-A FORWARD -j REJECT", true},
		"chain":             {"-N d; -A d -j DROP; -A FORWARD -j d", true},
	} {
		for _, k := range kinds {
			t.Run(name+", "+k.chain, func(t *testing.T) {
				var commands []*exec.Cmd
				for rule := range strings.SplitSeq(tt.rules, ";") {
					commands = append(commands, k.command(strings.Fields(rule)...))
				}
				want := ""
				if tt.want {
					want = k.chain + " filter FORWARD"
				}
				blocking(t, k.family, want, commands...)
			})
		}
	}
}
