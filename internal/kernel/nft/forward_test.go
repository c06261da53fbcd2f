package nft

import (
	"errors"
	"io/fs"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// between are the passages of these tests.
func between(version string) []Passage {
	return []Passage{{Version: version, In: "lan", Out: "wan"}, {Version: version, In: "wan", Out: "lan", Replies: true}}
}

// tunnel are packets to a port of this host.
func tunnel(version string) []Passage {
	return []Passage{{Version: version, In: "wan", Protocol: unix.IPPROTO_UDP, Port: 4790}}
}

// withLinks runs work in a namespace with two interfaces, after commands.
func withLinks(t *testing.T, commands []*exec.Cmd, work func() error) {
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
		return work()
	})
}

// chainsOf are the chains of blocks.
func chainsOf(list []Block) string {
	var names []string
	for _, b := range list {
		if name := b.Chain.String(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// blocking runs commands in a namespace and checks which chains are found; and that none is after
// the commands of the remedy have been run, which change no more than needed.
func blocking(t *testing.T, passages []Passage, want string, commands ...*exec.Cmd) {
	t.Helper()
	withLinks(t, commands, func() error {
		found, err := Blocking(passages)
		if got := chainsOf(found); got != want {
			t.Errorf("found %q, want %q", got, want)
		}
		for _, b := range found {
			if out, err := exec.Command("sh", "-c", b.Remedy()).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", b.Remedy(), err, out)
			}
		}
		if len(found) > 0 && err == nil {
			if found, err = Blocking(passages); len(found) > 0 {
				t.Errorf("found %v after the remedy", found)
			}
		}
		return err
	})
}

// TestBlockingUnreadable: a daemon that is not root's cannot list the tables of iptables-legacy, and
// reports the chains of nftables all the same.
func TestBlockingUnreadable(t *testing.T) {
	legacy := programs.Need(t, "iptables-legacy")
	commands := []*exec.Cmd{exec.Command(legacy, "-P", "FORWARD", "DROP"), ruleTable(t, "ip", "chain f { type filter hook forward priority 0; policy drop; }")}
	withLinks(t, commands, func() error {
		// The groups of this thread may read them.
		groups, err := unix.Getgroups()
		if err != nil {
			return err
		}
		var ids []uint32
		for _, g := range groups {
			ids = append(ids, uint32(g))
		}
		unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0) // of this thread, unlike unix.Setgroups
		defer unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(ids)), uintptr(unsafe.Pointer(unsafe.SliceData(ids))), 0)
		if err := unix.Setfsgid(65534); err != nil {
			return err
		}
		defer unix.Setfsgid(0)
		if err := unix.Setfsuid(65534); err != nil {
			return err
		}
		defer unix.Setfsuid(0)
		found, err := Blocking(between("ip"))
		if got := chainsOf(found); !strings.HasPrefix(got, "ip ") || strings.Contains(got, "legacy") || !errors.Is(err, fs.ErrPermission) {
			t.Errorf("found %q, %v", got, err)
		}
		chains, err := Untracked(Packets{Mark: 4791, Bits: 0xffff, Lines: []string{"wan"}})
		if len(chains) != 1 || chains[0].Family != "ip" || !errors.Is(err, fs.ErrPermission) {
			t.Errorf("found %v, %v", chains, err)
		}
		return nil
	})
}

// ruleTable returns the command that makes a table with rules, which are separated by semicolons.
func ruleTable(t *testing.T, family, rules string) *exec.Cmd {
	t.Helper()
	nft := programs.Need(t, "nft")
	c := exec.Command(nft, "-f", "-")
	c.Stdin = strings.NewReader("table " + family + " fw {\n" + strings.ReplaceAll(rules, ";", "\n") + "\n}\n")
	return c
}

// TestBlocking: chains that drop all new connections between two interfaces are found, those that
// may accept some are not.
func TestBlocking(t *testing.T) {
	const base = "chain c { type filter hook forward priority 0; policy "
	for name, tt := range map[string]struct {
		rules string
		want  string
	}{
		"accepts":              {base + "accept; }", ""},
		"policy":               {base + "drop; }", "inet fw c"},
		"another hook":         {"chain c { type filter hook input priority 0; policy drop; }", ""},
		"drop of all":          {base + "accept; counter drop; }", "inet fw c"},
		"reject":               {base + `accept; iifname "wan" reject; }`, "inet fw c"},
		"drop of some":         {base + "accept; tcp dport 25 drop; ct state invalid drop; }", ""},
		"established alone":    {base + "drop; ct state established,related accept; }", "inet fw c"},
		"new ones, too":        {base + "drop; ct state established,related,new accept; }", ""},
		"others":               {base + `drop; iifname "docker0" accept; oifname "docker0" accept; }`, "inet fw c"},
		"ours":                 {base + `drop; ct state established accept; iifname "lan" accept; }`, ""},
		"no answers":           {base + `drop; iifname "lan" accept; }`, "inet fw c"},
		"no requests":          {base + `drop; iifname "wan" accept; }`, "inet fw c"},
		"by number":            {base + `drop; oif "wan" accept; ct state related,established accept; }`, ""},
		"set of states":        {base + `drop; ct state { established, related } accept; }`, "inet fw c"},
		"map of states":        {base + `drop; ct state vmap { established : accept, invalid : drop }; }`, "inet fw c"},
		"map of links":         {base + `drop; ct state established accept; iifname . oifname vmap { "a" . "b" : accept }; }`, ""},
		"set of links":         {base + `drop; iifname { "lan", "wan" } accept; }`, ""},
		"set of others":        {base + `drop; iifname { "docker0", "w" } accept; }`, "inet fw c"},
		"not in a set":         {base + `drop; iifname != { "docker0" } accept; }`, ""},
		"returns before":       {`chain d { ip6 saddr 2001:db8::/32 return; drop; }; ` + base + "accept; jump d; }", ""},
		"goto":                 {`chain d { iifname "lan" return; }; ` + base + `drop; ct state established accept; goto d; accept; }`, "inet fw c"},
		"the other version":    {base + "accept; meta nfproto ipv4 drop; }", ""},
		"this version":         {base + "accept; meta nfproto ipv6 counter drop; }", "inet fw c"},
		"firewalld":            {`chain d { jump e; reject; }; chain e { oifname "docker0" accept; }; ` + base + `accept; ct state { established, related } accept; ct status dnat accept; iifname "lo" accept; ct state invalid drop; jump d; }`, "inet fw c"},
		"all but another":      {base + `drop; iifname != "docker0" accept; }`, ""},
		"some of ours":         {base + "drop; ip6 daddr 2001:db8::/32 accept; }", ""},
		"chain that accepts":   {`chain d { ip6 daddr 2001:db8::/32 accept; }; ` + base + "drop; jump d; }", ""},
		"chain of docker":      {`chain d { ct state established accept; return; }; ` + base + `drop; jump d; oifname "docker0" jump d; }`, "inet fw c"},
		"chain that drops":     {`chain d { drop; }; ` + base + "accept; jump d; }", "inet fw c"},
		"chain drops a part":   {`chain d { drop; }; ` + base + "accept; tcp dport 25 jump d; }", ""},
		"map":                  {base + "drop; ct state vmap { established : accept, new : accept }; }", ""},
		"may return, accept":   {base + `drop; ct state established accept; ip6 daddr 2001:db8::/32 return; iifname "lan" accept; }`, ""},
		"returns, then accept": {base + "drop; return; accept; }", "inet fw c"},
		"may return, drop":     {`chain d { ip6 daddr 2001:db8::/32 return; drop; }; ` + base + "drop; jump d; accept; }", ""},
		"may go to a chain":    {`chain d { return; }; ` + base + "drop; ip6 daddr 2001:db8::/32 goto d; accept; }", ""},
		"accepted, then drop":  {base + `accept; iifname "lan" accept; iifname "wan" accept; drop; }`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			blocking(t, between("ip6"), tt.want, ruleTable(t, "inet", tt.rules))
		})
	}
	t.Run("the other family", func(t *testing.T) {
		blocking(t, between("ip6"), "", ruleTable(t, "ip", base+"drop; }"))
	})
}

// TestBlockingInput: chains that drop the tunnel's packets are found, those that accept its port
// are not.
func TestBlockingInput(t *testing.T) {
	const base = "chain c { type filter hook input priority 0; policy "
	const usual = `iifname "lo" accept; ct state established,related accept; ip protocol icmp accept; ip6 nexthdr ipv6-icmp accept; tcp dport { 22, 443 } accept; udp dport 546 accept; `
	for name, tt := range map[string]struct {
		rules string
		want  string
	}{
		"accepts":             {base + "accept; }", ""},
		"forwards none":       {"chain c { type filter hook forward priority 0; policy drop; }", ""},
		"policy":              {base + "drop; " + usual + "}", "inet fw c"},
		"reject":              {base + "accept; " + usual + "reject; }", "inet fw c"},
		"the port":            {base + "drop; " + usual + "udp dport 4790 accept; }", ""},
		"all of UDP":          {base + "drop; " + usual + "meta l4proto udp accept; }", ""},
		"its set":             {base + "drop; " + usual + "udp dport { 53, 4790 } accept; }", ""},
		"its range":           {base + "drop; " + usual + "udp dport 4000-5000 accept; }", ""},
		"ranges of a set":     {base + "drop; " + usual + "udp dport { 1-3, 4000-4790 } accept; }", ""},
		"ranges of others":    {base + "drop; " + usual + "udp dport { 1-3, 4000-4789, 4791-5000 } accept; }", "inet fw c"},
		"for a source":        {base + "drop; " + usual + "ip saddr 192.0.2.1 udp dport 4790 accept; }", ""},
		"on another link":     {base + "drop; " + usual + `iifname "lan" udp dport 4790 accept; }`, "inet fw c"},
		"map of protocols":    {"chain d { udp dport 53 accept; }; " + base + "drop; meta l4proto vmap { tcp : accept, udp : jump d }; }", "inet fw c"},
		"map with intervals":  {"chain d { accept; }; " + base + "drop; th dport vmap { 22 : accept, 4000-5000 : jump d }; }", ""},
		"map of other ports":  {"chain d { accept; }; " + base + "drop; th dport vmap { 22 : accept, 5000-6000 : jump d }; }", "inet fw c"},
		"the port is dropped": {base + "accept; udp dport 4790 drop; }", "inet fw c"},
	} {
		t.Run(name, func(t *testing.T) { blocking(t, tunnel("ip"), tt.want, ruleTable(t, "inet", tt.rules)) })
	}
}

// captured are the packets of captured connections to a port, or to all.
func captured(version string, port uint16) []Passage {
	return []Passage{{Version: version, In: "lan", Protocol: unix.IPPROTO_TCP, Port: port, Captured: 4788}}
}

// TestBlockingCaptured: chains of input that drop captured connections are found, those that accept
// them, or some of them, are not; and Permit has the others accept them.
func TestBlockingCaptured(t *testing.T) {
	const base = "chain c { type filter hook input priority 0; policy "
	const usual = `iifname "lo" accept; ct state established,related accept; ip6 nexthdr ipv6-icmp accept; `
	const found = "inet fw c"
	for name, tt := range map[string]struct {
		rules        string
		all, port443 string
	}{
		"accepts":       {base + "accept; }", "", ""},
		"forward":       {"chain c { type filter hook forward priority 0; policy drop; }", "", ""},
		"policy":        {base + "drop; " + usual + "}", found, found},
		"reject":        {base + "accept; " + usual + "reject; }", found, found},
		"the interface": {base + "drop; " + usual + `iifname "lan" accept; }`, "", ""},
		"another one":   {base + "drop; " + usual + `iifname "wan" accept; }`, found, found},
		"the mark":      {base + "drop; " + usual + "meta mark 0x12b4 accept; }", "", ""},
		"another mark":  {base + "drop; " + usual + "meta mark 0x12b5 accept; }", found, found},
		"UDP":           {base + "drop; " + usual + "meta l4proto udp accept; }", found, found},
		"all of TCP":    {base + "drop; " + usual + "meta l4proto tcp accept; }", "", ""},
		"ports":         {base + "drop; " + usual + "tcp dport { 22, 80 } accept; }", "", found},
		"its port":      {base + "drop; " + usual + "tcp dport 443 accept; }", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			blocking(t, captured("ip6", 0), tt.all, ruleTable(t, "inet", tt.rules))
			blocking(t, captured("ip6", 443), tt.port443, ruleTable(t, "inet", tt.rules))
		})
	}
	t.Run("permit", func(t *testing.T) {
		withLinks(t, []*exec.Cmd{ruleTable(t, "inet", base+"drop; }")}, func() error {
			if _, err := Permit("test", captured("ip", 443)); err != nil {
				return err
			}
			left, err := Blocking(captured("ip", 443))
			if len(left) > 0 {
				t.Errorf("%v after Permit", left)
			}
			return err
		})
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
		"new ones, too":     {"-P FORWARD DROP; -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; -A FORWARD -i lan -m conntrack --ctstate NEW -j ACCEPT", false},
		"no answers":        {"-P FORWARD DROP; -A FORWARD -i lan -j ACCEPT", true},
		"marked":            {"-P FORWARD DROP; -A FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT", true},
		"returns":           {"-P FORWARD ACCEPT; -N d; -A d -p udp -j RETURN; -A d -j DROP; -A FORWARD -p tcp -j d", false},
		"may return":        {"-P FORWARD DROP; -A FORWARD -p tcp -j RETURN; -A FORWARD -j ACCEPT", false},
		"to the policy":     {"-P FORWARD DROP; -A FORWARD -j RETURN; -A FORWARD -j ACCEPT", true},
		"may be accepted":   {"-P FORWARD ACCEPT; -A FORWARD -p tcp -j RETURN; -A FORWARD -j DROP", false},
		"goto":              {"-P FORWARD DROP; -N d; -A d -p tcp -j RETURN; -A FORWARD -g d; -A FORWARD -j ACCEPT", true},
		"goto for some":     {"-P FORWARD DROP; -N d; -A FORWARD -p tcp -g d; -A FORWARD -j ACCEPT", false},
		"input":             {"-P INPUT DROP", false},
		"docker":            {"-P FORWARD DROP; -N DOCKER; -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; -A FORWARD -i docker0 -j ACCEPT; -A FORWARD -j DOCKER", true},
		"ours":              {"-P FORWARD DROP; -A FORWARD -i lan -j ACCEPT; -A FORWARD -o lan -j ACCEPT", false},
		"the tunnel":        {"-P INPUT DROP; -A INPUT -i lo -j ACCEPT; -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; -A INPUT -p tcp --dport 22 -j ACCEPT; -A INPUT -p udp -m udp --dport 53 -j ACCEPT", true},
		"its port":          {"-P INPUT DROP; -A INPUT -p udp -m udp --dport 4790 -j ACCEPT", false},
		"ports of another":  {"-P INPUT DROP; -A INPUT -p tcp -m multiport --dports 22,4790 -j ACCEPT", true},
		"its ports":         {"-P INPUT DROP; -A INPUT -p udp -m multiport --dports 53,4790 -j ACCEPT", false},
		"not from there":    {"-P INPUT DROP; -A INPUT ! -i wan -j ACCEPT", true},
		"ufw":               {"-P INPUT DROP; -N not-local; -N user; -A not-local -m addrtype --dst-type LOCAL -j RETURN; -A not-local -j DROP; -A user -p udp --dport 4790 -j ACCEPT; -A INPUT -m conntrack --ctstate INVALID -j DROP; -A INPUT -j not-local; -A INPUT -j user", false},
		"reject":            {"-A FORWARD -j REJECT", true},
		"captured":          {"-P INPUT DROP; -A INPUT -i lo -j ACCEPT; -A INPUT -p udp -j ACCEPT; -A INPUT -m mark --mark 0x1 -j ACCEPT; -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", true},
		"captured, by mark": {"-P INPUT DROP; -A INPUT -m mark --mark 0x12b4 -j ACCEPT", false},
		"captured, by TCP":  {"-P INPUT DROP; -A INPUT -p tcp -j ACCEPT", false},
		"chain":             {"-N d; -A d -j DROP; -A FORWARD -j d", true},
	} {
		for _, k := range kinds {
			t.Run(name+", "+k.chain, func(t *testing.T) {
				var commands []*exec.Cmd
				for rule := range strings.SplitSeq(tt.rules, ";") {
					commands = append(commands, k.command(strings.Fields(rule)...))
				}
				want, passages := "", between(k.family)
				if tt.want {
					want = k.chain + " filter FORWARD"
				}
				if strings.HasPrefix(tt.rules, "-P INPUT") && name != "input" {
					passages, want = tunnel(k.family), strings.Replace(want, "FORWARD", "INPUT", 1)
				}
				if strings.HasPrefix(name, "captured") {
					passages = captured(k.family, 443)
				}
				blocking(t, passages, want, commands...)
			})
		}
	}
}
