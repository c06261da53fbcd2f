package gateway

import (
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/sched"
)

func keyOf(first byte) handshake.PrivateKey {
	var k handshake.PrivateKey
	k[0], k[31] = first&248, 64
	return k
}

func publicKey(first byte) string { return keyOf(first).Public().String() }

// site is a valid configuration.
func site() Config {
	prefixes := func(list ...string) (p []netip.Prefix) {
		for _, s := range list {
			p = append(p, netip.MustParsePrefix(s))
		}
		return p
	}
	return Config{
		Key: "gw.key",
		LAN: LAN{Interfaces: []string{"eth0"}, Prefixes: prefixes("10.1.0.0/16", "2001:db8:1::/48")},
		Paths: []Path{
			{Name: "fiber", Interface: "eth1", Rate: Rates{Rate(300 * unit.MbitPerSecond), Rate(50 * unit.MbitPerSecond)}},
			{Name: "lte", Interface: "wwan0", Rate: Rates{RateAuto, RateAuto}, Cost: 2},
		},
		Peers: []Peer{
			{Name: "hq", PublicKey: publicKey(8), Endpoints: []Endpoint{"hq.example:4790"}, Prefixes: prefixes("10.2.0.0/16", "10.3.0.0/16")},
			{Name: "home", PublicKey: publicKey(16), Prefixes: prefixes("10.4.0.0/16")},
		},
	}
}

func TestCheck(t *testing.T) {
	c := site()
	if err := c.Check().Err(); err != nil {
		t.Fatal(err)
	}
	prefix := netip.MustParsePrefix
	for name, tt := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no key":                  {func(c *Config) { c.Key = "" }, "key: must be the file"},
		"no paths":                {func(c *Config) { c.Paths = nil }, "paths: must be 1 to 16, got 0"},
		"17 paths":                {func(c *Config) { c.Paths = slices.Repeat(c.Paths[:1], 17) }, "paths: must be 1 to 16, got 17"},
		"path twice":              {func(c *Config) { c.Paths[1].Name = "fiber" }, "paths[1].name: fiber is already paths[0].name"},
		"interface twice":         {func(c *Config) { c.Paths[1].Interface = "eth1" }, "paths[1].interface: eth1 is already paths[0].interface"},
		"interface of the LAN":    {func(c *Config) { c.Paths[1].Interface = "eth0" }, `paths[1].interface: "eth0" is lan.interfaces[0] already`},
		"interface of the tunnel": {func(c *Config) { c.Paths[1].Interface = "tabane0" }, `paths[1].interface: "tabane0" is the tunnel itself`},
		"no rate":                 {func(c *Config) { c.Paths[0].Rate.Up = 0 }, "paths[0].rate.up: must be given"},
		"none both ways":          {func(c *Config) { c.Paths[0].Rate = Rates{RateNone, RateNone} }, "paths[0].rate: must not be none in both directions"},
		"nothing up":              {func(c *Config) { c.Paths = c.Paths[:1]; c.Paths[0].Rate.Up = RateNone }, "paths: must have a path with a rate up"},
		"negative cost":           {func(c *Config) { c.Paths[0].Cost = -1 }, "paths[0].cost: must be 0 to"},
		"strict, measured":        {func(c *Config) { c.Paths[1].Strict = true }, "paths[1].rate.down: must be a bandwidth: strict does not let it be exceeded"},
		"strict, too fast":        {func(c *Config) { c.Paths[0].Strict, c.Paths[0].Rate.Up = true, 3_000_000_000 }, "paths[0].rate.up: must be at most 2Gbit/s with strict, got 3Gbit/s"},
		"strict, compatible":      {func(c *Config) { c.Paths[0].Strict, c.Probes.Format = true, ProbesCompatible }, "paths[0].strict: must not be with probes.format compatible"},
		"strict, plain": {func(c *Config) {
			c.Paths[0].Strict, c.Peers[0].Mode = true, "plain"
		}, "paths[0].strict: must not be with peers[0], whose packets are not encrypted"},
		"two routers": {func(c *Config) {
			c.Paths[0].Via = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
		}, "paths[0].via[1]: must be of another IP version"},
		"LAN without prefixes": {func(c *Config) { c.LAN.Prefixes = nil }, "lan.prefixes: must have at least one prefix"},
		"masquerading of everything": {func(c *Config) {
			c.Masquerade, c.Peers[1].Prefixes = true, []netip.Prefix{prefix("0.0.0.0/0")}
		}, "masquerade: must be left out: the peers' prefixes contain every public address of 0.0.0.0/0"},
		"masquerading of two halves": {func(c *Config) {
			c.Masquerade, c.Peers[0].Prefixes, c.Peers[1].Prefixes = true, []netip.Prefix{prefix("0.0.0.0/1")}, []netip.Prefix{prefix("128.0.0.0/1")}
		}, "masquerade: must be left out: the peers' prefixes contain every public address of 0.0.0.0/0"},
		"masquerading of the IPv6 Internet": {func(c *Config) {
			c.Masquerade, c.Peers[1].Prefixes = true, []netip.Prefix{prefix("2000::/4"), prefix("3000::/4")}
		}, "masquerade: must be left out: the peers' prefixes contain every public address of ::/0"},
		"a masqueraded LAN at a VPS":           {func(c *Config) { c.LAN.Masquerade, c.Masquerade = true, true }, "lan.masquerade: must be left out beside masquerade"},
		"a masqueraded LAN of an alliance":     {func(c *Config) { c.LAN.Masquerade, c.Role = true, RoleHomeAgent }, "lan.masquerade: must be left out with role home-agent"},
		"a masqueraded LAN to an open peer":    {func(c *Config) { c.LAN.Masquerade, c.Peers[1].Mode = true, "plain" }, "lan.masquerade: must not be with peers[1], whose packets are not encrypted"},
		"a masqueraded LAN of IPv6":            {func(c *Config) { c.LAN.Masquerade, c.LAN.Prefixes = true, c.LAN.Prefixes[1:] }, "lan.masquerade: must be left out: lan.prefixes has no network of IPv4"},
		"a masqueraded LAN without an address": {func(c *Config) { c.LAN.Masquerade = true }, "lan.masquerade: needs an address of IPv4 in tunnel.addresses"},
		"routed without masquerade":            {func(c *Config) { c.Routed = []netip.Prefix{prefix("2001:db8:100::/48")} }, "routed: must be left out without masquerade"},
		"everything routed":                    {func(c *Config) { c.Masquerade, c.Routed = true, []netip.Prefix{prefix("::/0")} }, "routed[0]: must not be a default route"},
		"inbound to others": {func(c *Config) {
			c.Masquerade, c.Routed, c.Inbound = true, []netip.Prefix{prefix("2001:db8:100::/48")}, []netip.Prefix{prefix("2001:db8:101::5/128")}
		}, "inbound[0]: 2001:db8:101::5/128 is in no prefix of routed"},
		"no peers":               {func(c *Config) { c.Peers = nil }, "peers: must be 1 to"},
		"peer twice":             {func(c *Config) { c.Peers[1].Name = "hq" }, "peers[1].name: hq is already peers[0].name"},
		"public key twice":       {func(c *Config) { c.Peers[1].PublicKey = c.Peers[0].PublicKey }, "peers[1].public_key: "},
		"no public key":          {func(c *Config) { c.Peers[0].PublicKey = "" }, "peers[0].public_key: want a key"},
		"unusable public key":    {func(c *Config) { c.Peers[0].PublicKey = handshake.PublicKey{}.String() }, "peers[0].public_key: not a usable"},
		"prefixes of two peers":  {func(c *Config) { c.Peers[1].Prefixes[0] = prefix("10.2.3.0/24") }, "peers[1].prefixes[0]: 10.2.3.0/24 overlaps peers[0].prefixes[0] 10.2.0.0/16"},
		"around those of a peer": {func(c *Config) { c.Peers[1].Prefixes[0] = prefix("10.0.0.0/8") }, "peers[1].prefixes[0]: 10.0.0.0/8 overlaps peers[0].prefixes[0] 10.2.0.0/16"},
		"two default routes": {func(c *Config) {
			c.Peers[0].Prefixes[0], c.Peers[1].Prefixes[0] = prefix("0.0.0.0/0"), prefix("0.0.0.0/0")
		}, "peers[1].prefixes[0]: 0.0.0.0/0 overlaps peers[0].prefixes[0] 0.0.0.0/0"},
		"prefixes of two peers in a default route": {func(c *Config) {
			c.Peers[0].Prefixes = []netip.Prefix{prefix("0.0.0.0/0"), prefix("10.2.0.0/16")}
			c.Peers[1].Prefixes[0] = prefix("10.2.3.0/24")
		}, "peers[1].prefixes[0]: 10.2.3.0/24 overlaps peers[0].prefixes[1] 10.2.0.0/16"},
		"a prefix of the LAN": {func(c *Config) { c.Peers[1].Prefixes[0] = prefix("10.1.2.0/24") }, "peers[1].prefixes[0]: 10.1.2.0/24 overlaps lan.prefixes[0] 10.1.0.0/16"},
		"loopback":            {func(c *Config) { c.Peers[1].Prefixes[0] = prefix("127.0.0.0/8") }, "peers[1].prefixes[0]: must be a prefix of unicast addresses"},
		"this network":        {func(c *Config) { c.Peers[1].Prefixes[0] = prefix("0.1.0.0/16") }, "peers[1].prefixes[0]: must be a prefix of unicast addresses"},
		"link-local":          {func(c *Config) { c.Peers[1].Prefixes[0] = prefix("fe80::/10") }, "peers[1].prefixes[0]: must be a prefix of unicast addresses"},
		"unspecified":         {func(c *Config) { c.Peers[1].Prefixes[0] = prefix("::/96") }, "peers[1].prefixes[0]: must be a prefix of unicast addresses"},
		"allowed host bits":   {func(c *Config) { c.Peers[1].Allow = []netip.Prefix{prefix("10.1.0.1/16")} }, "peers[1].allow[0]: must be a prefix"},
		"allowed twice":       {func(c *Config) { c.Peers[1].Allow = []netip.Prefix{prefix("10.1.0.0/16"), prefix("10.1.0.0/16")} }, "peers[1].allow[1]: "},
		"host bits":           {func(c *Config) { c.Peers[1].Prefixes[0] = prefix("10.4.0.1/16") }, "peers[1].prefixes[0]: must be a prefix"},
		"no prefixes":         {func(c *Config) { c.Peers[1].Prefixes = nil }, "peers[1].prefixes: must be 1 to"},
		"no port":             {func(c *Config) { c.Peers[0].Endpoints[0] = "hq.example" }, "peers[0].endpoints[0]: want HOST:PORT"},
		"port 0":              {func(c *Config) { c.Peers[0].Endpoints[0] = "hq.example:0" }, "peers[0].endpoints[0]: want HOST:PORT"},
		"almost an address":   {func(c *Config) { c.Peers[0].Endpoints[0] = "192.0.2.256:4790" }, "peers[0].endpoints[0]: want HOST:PORT"},
		"endpoint twice":      {func(c *Config) { c.Peers[0].Endpoints = []Endpoint{"192.0.2.1:1", "192.0.2.1:1"} }, "peers[0].endpoints[1]: 192.0.2.1:1 is already"},
		"mode":                {func(c *Config) { c.Peers[0].Mode = "plane" }, `peers[0].mode: must be one of tunnel, plain, nat, got "plane", did you mean "plain"?`},
		"nat with seal":       {func(c *Config) { c.Peers[0].Mode, c.Peers[0].Seal = "nat", "all" }, "peers[0].seal: must be left out with mode nat, which has no tunnel"},
		"nat, redundant": {func(c *Config) {
			c.Peers[0].Mode, c.Paths[1].Rate, c.Policy = "nat", c.Paths[0].Rate, []Rule{{Discipline: Discipline{Name: "redundant"}}}
		}, "policy[0].discipline: must not be redundant with mode nat"},
		"seal":                   {func(c *Config) { c.Peers[0].Seal = "nome" }, `peers[0].seal: must be one of all, none, got "nome"`},
		"plain with seal":        {func(c *Config) { c.Peers[0].Mode, c.Peers[0].Seal = "plain", "all" }, "peers[0].seal: must be left out with mode plain, which has no tunnel"},
		"no seal, rate measured": {func(c *Config) { c.Peers[0].Seal = "none" }, "paths[1].rate: must not be auto: peers[0] has mode tunnel, seal none, whose packets do not measure it"},
		"plain, rate measured":   {func(c *Config) { c.Peers[0].Mode = "plain" }, "paths[1].rate: must not be auto: peers[0] has mode plain, whose packets do not measure it"},
		"plain with auto":        {func(c *Config) { c.Peers[0].Mode, c.Policy = "plain", nil }, "policy: must be given: peers[0] has mode plain, and discipline auto, the default, is for mode tunnel"},
		"plain, order": {func(c *Config) {
			c.Peers[0].Mode, c.Policy = "plain", []Rule{{Discipline: Discipline{Name: "dq"}, Resequence: Resequence{Bound: time.Millisecond}}}
		}, "policy[0].resequence: must be off or left out: peers[0] has mode plain, whose packets are not held"},
		"unknown discipline":   {func(c *Config) { c.Policy = []Rule{{Discipline: Discipline{Name: "dk"}}} }, `policy[0].discipline.name: must be one of ratio, redundant, dq, dqj, auto, best, flow, got "dk", did you mean "dq"`},
		"no discipline":        {func(c *Config) { c.Policy = []Rule{{}} }, "policy[0].discipline: must be one of"},
		"ratio 0:0":            {func(c *Config) { c.Policy = []Rule{{Discipline: Discipline{Ratio: "0:0"}}} }, "policy[0].discipline.ratio: must give packets to at least one path"},
		"ratio of three paths": {func(c *Config) { c.Policy = []Rule{{Discipline: Discipline{Ratio: "2:1:1"}}} }, "policy[0].discipline.ratio: must have one number for each of the 2 paths"},
		"ratio of auto":        {func(c *Config) { c.Policy = []Rule{{Discipline: Discipline{Name: "auto", Ratio: "2:1"}}} }, "policy[0].discipline.ratio: is not a parameter of auto"},
		"ratio of words":       {func(c *Config) { c.Policy = []Rule{{Discipline: Discipline{Ratio: "a:b"}}} }, "policy[0].discipline.ratio: must be numbers"},
		"flow of nothing":      {func(c *Config) { c.Policy = []Rule{{Discipline: Discipline{Flow: "best"}}} }, "policy[0].discipline.flow: must be one of pinned, cheapest, fastest"},
		"held for too long": {func(c *Config) {
			c.Policy = []Rule{{Discipline: Discipline{Name: "dq"}, Resequence: Resequence{Bound: time.Minute}}}
		}, "policy[0].resequence: must be"},
		"no rule for other packets": {func(c *Config) { c.Policy = []Rule{{Match: Match{Port: 80}, Discipline: Discipline{Name: "dq"}}} }, "policy[0].match: must be left out in the last rule"},
		"port of ICMP": {func(c *Config) {
			c.Policy = []Rule{{Match: Match{Protocol: protocols[2], Port: 80}, Discipline: Discipline{Name: "dq"}}}
		}, "policy[0].match.port: must be left out"},
		"MTU too small for IPv6":    {func(c *Config) { c.Tunnel.MTU = 1200 }, "tunnel.mtu: must be 1280 to"},
		"an address of the tunnel":  {func(c *Config) { c.Tunnel.Addresses = []netip.Prefix{{}} }, "tunnel.addresses[0]: must be an address"},
		"a relative control socket": {func(c *Config) { c.Control = "x" }, "control: must be an absolute path"},
		"LAN prefixes that overlap": {func(c *Config) { c.LAN.Prefixes[1] = prefix("10.1.1.0/24") }, "lan.prefixes[1]: 10.1.1.0/24 overlaps lan.prefixes[0] 10.1.0.0/16"},
		"an interface that is none": {func(c *Config) { c.Paths[0].Interface = "a/b" }, "paths[0].interface: must be the name of an interface"},
		"format of probes":          {func(c *Config) { c.Probes.Format = "open" }, `probes.format: must be sealed or compatible, got "open"`},
		"interval of probes":        {func(c *Config) { c.Probes.Interval = time.Millisecond }, "probes.interval: must be 100ms to 1m0s, got 1ms"},
		"busy longer than idle":     {func(c *Config) { c.Probes.Busy = 2 * time.Second }, "probes.busy: must be 10ms to the interval, 1s, got 2s"},
		"copies of a discipline that sends none": {func(c *Config) {
			c.Policy = []Rule{{Discipline: Discipline{Name: "dq"}, CopyCostlier: true}}
		}, "policy[0].copy_costlier: must be left out: of all disciplines, auto alone"},
		"a mark with a sealed peer": {func(c *Config) {
			c.Policy = []Rule{{Match: Match{Mark: Mark{1, 1, "1/1"}}, Discipline: Discipline{Name: "dq"}}, {Discipline: Discipline{Name: "dq"}}}
		}, "policy[0].match.mark: must be left out: peers[0] has mode tunnel, and the kernel does not pass the marks"},
		"two faults are both listed": {func(c *Config) { c.Key, c.Peers[0].Name = "", "" }, "peers[0].name: must be letters"},
	} {
		t.Run(name, func(t *testing.T) {
			c := site()
			tt.change(&c)
			if err := c.Check().Err(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
	c.Peers[0].Prefixes = []netip.Prefix{prefix("0.0.0.0/0"), prefix("10.2.0.0/16")}
	if err := c.Check().Err(); err != nil {
		t.Errorf("a default route to a peer beside another one: %v", err)
	}
}

func TestPolicyOfThePlane(t *testing.T) {
	c := site()
	if got := policyOf(&c); len(got) != 1 || got[0].Discipline.Name != "auto" || got[0].Resequence.Mode != dataplane.ResequenceAuto {
		t.Errorf("default: %+v", got)
	}
	c.Policy = []Rule{
		{Match: Match{Protocol: protocols[2]}, Discipline: Discipline{Name: "redundant"}, Resequence: Resequence{Off: true}},
		{Match: Match{Port: 80, DSCP: DSCP{true, 46, "ef"}}, Discipline: Discipline{Ratio: "2:0"}, Resequence: Resequence{Bound: time.Millisecond}},
		{Match: Match{Prefix: netip.MustParsePrefix("10.9.0.0/16")}, Discipline: Discipline{Flow: "cheapest"}},
		{Discipline: Discipline{Name: "flow"}},
	}
	want := dataplane.Policy{
		{Match: dataplane.Match{Protocols: []uint8{1, 58}}, Discipline: dataplane.Discipline{Name: "redundant"}, Resequence: dataplane.Resequence{Mode: dataplane.ResequenceOff}},
		{Match: dataplane.Match{Port: 80, HasDSCP: true, DSCP: 46}, Discipline: dataplane.Discipline{Name: "ratio", Ratio: []int{2, 0}}, Resequence: dataplane.Resequence{Mode: dataplane.ResequenceFixed, Bound: time.Millisecond}},
		{Match: dataplane.Match{Prefix: netip.MustParsePrefix("10.9.0.0/16")}, Discipline: dataplane.Discipline{Name: "flow", Choice: sched.Cheapest}},
		{Discipline: dataplane.Discipline{Name: "flow", Choice: sched.Pinned}},
	}
	if diff := cmp.Diff(want, policyOf(&c), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWarnings(t *testing.T) {
	c := site()
	c.Policy = []Rule{{Discipline: Discipline{Name: "auto"}}, {Discipline: Discipline{Name: "dq"}}}
	if w := c.Warnings(); len(w) != 1 || w[0].Error() != "policy[1]: no packet reaches it: policy[0] matches all" {
		t.Errorf("%v", w)
	}
}

// TestCopyCostlier: the key reaches the plane, and is warned of where no path costs more.
func TestCopyCostlier(t *testing.T) {
	c := site()
	c.Policy = []Rule{{Discipline: Discipline{Name: "auto"}, CopyCostlier: true}}
	c.Paths[1].Cost = c.Paths[0].Cost + 1
	if got := policyOf(&c)[0].Discipline; !got.CopyCostlier || got.String() != "auto, copies on costlier paths" || c.Check().Err() != nil || len(c.Warnings()) != 0 {
		t.Errorf("%v, faults %v, warnings %v", got, c.Check(), c.Warnings())
	}
	c.Paths[1].Cost = c.Paths[0].Cost
	if w := c.Warnings(); len(w) != 1 || w[0].Error() != "policy[0].copy_costlier: has no effect: all paths have the same cost" {
		t.Errorf("warnings %v", w)
	}
}

func TestProbes(t *testing.T) {
	c := site()
	if got, want := c.Probes.plane(), (dataplane.Probes{Idle: time.Second, Busy: 50 * time.Millisecond}); got != want || len(c.Warnings()) != 0 {
		t.Errorf("default %+v, want %+v; warnings %v", got, want, c.Warnings())
	}
	if err := c.Probes.ParseShort("compatible"); err != nil {
		t.Fatal(err)
	}
	c.Probes.Busy = 200 * time.Millisecond
	if got, want := c.Probes.plane(), (dataplane.Probes{Compatible: true, Idle: time.Second, Busy: 200 * time.Millisecond}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if w := c.Warnings(); len(w) != 1 || !strings.Contains(w[0].Error(), "probes.format: nothing authenticates compatible probes") {
		t.Errorf("warnings %v", w)
	}
	if err := c.Probes.ParseShort("paper"); err == nil {
		t.Error("an unknown format is accepted")
	}
}

func TestValues(t *testing.T) {
	for text, want := range map[string]DSCP{"ef": {true, 46, "ef"}, "af41": {true, 34, "af41"}, "cs1": {true, 8, "cs1"}, "63": {true, 63, "63"}, "0": {true, 0, "0"}} {
		var d DSCP
		if err := d.UnmarshalText([]byte(text)); err != nil || d != want {
			t.Errorf("DSCP %s: got %+v, %v", text, d, err)
		}
	}
	for _, text := range []string{"af44", "af01", "cs8", "64", "-1", "e"} {
		if new(DSCP).UnmarshalText([]byte(text)) == nil {
			t.Errorf("DSCP %q is accepted", text)
		}
	}
	for text, want := range map[string]Mark{"0": {0, math.MaxUint32, "0"}, "0x10/0xff": {0x10, 0xff, "0x10/0xff"}, "4294967295": {math.MaxUint32, math.MaxUint32, "4294967295"}} {
		var m Mark
		err := m.UnmarshalText([]byte(text))
		if got, _ := m.MarshalText(); err != nil || m != want || string(got) != text {
			t.Errorf("mark %s: got %+v, %v", text, m, err)
		}
	}
	for _, text := range []string{"-1", "4294967296", "0x100/0xff", "0/0", "1/", "/1", "x"} {
		if new(Mark).UnmarshalText([]byte(text)) == nil {
			t.Errorf("mark %q is accepted", text)
		}
	}
	for _, text := range []string{"auto", "off", "20ms"} {
		var r Resequence
		err := r.UnmarshalText([]byte(text))
		if got, _ := r.MarshalText(); err != nil || string(got) != text {
			t.Errorf("resequence %s: got %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"0s", "-1ms", "on"} {
		if new(Resequence).UnmarshalText([]byte(text)) == nil {
			t.Errorf("resequence %q is accepted", text)
		}
	}
	for text, want := range map[string]dataplane.Rate{"auto": {Estimated: true}, "none": {}, "5Mbit/s": {Bandwidth: 5 * unit.MbitPerSecond}} {
		var r Rate
		if err := r.UnmarshalText([]byte(text)); err != nil || r.plane() != want {
			t.Errorf("rate %s: got %+v, %v", text, r.plane(), err)
		}
	}
	for _, text := range []string{"2000Tbit/s", "0bit/s", "unlimited", "5"} {
		if new(Rate).UnmarshalText([]byte(text)) == nil {
			t.Errorf("rate %q is accepted", text)
		}
	}
	for text, want := range map[string][]uint8{"udp": {17}, "icmp": {1, 58}, "47": {47}} {
		var p Protocol
		if err := p.UnmarshalText([]byte(text)); err != nil || !slices.Equal(p.numbers(), want) {
			t.Errorf("protocol %s: got %v, %v", text, p.numbers(), err)
		}
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	own := keyOf(24)
	write("good", "# public key: "+own.Public().String()+"\n"+own.Text()+"\n", 0o600)
	write("open", own.Text()+"\n", 0o640)
	write("short", own.Text()[:20], 0o600)
	write("two", own.Text()+"\n"+own.Text()+"\n", 0o600)
	write("large", strings.Repeat("#\n", maxKeyFile), 0o600)
	for name, want := range map[string]string{
		"good": "", "open": "may be read or written by others (mode 0640): chmod 600", "short": "want a key", "two": "more than one key",
		"large": "larger than", "absent": "no such file", ".": "not a regular file",
	} {
		c := site()
		c.Key = name
		faults := c.Files(dir)
		if want == "" {
			if len(faults) > 0 || c.Key != filepath.Join(dir, name) {
				t.Errorf("%s: %v, key %s", name, faults, c.Key)
			}
			continue
		}
		if len(faults) != 1 || faults[0].Path != "key" || !strings.Contains(faults[0].Message, want) {
			t.Errorf("%s: got %v, want %q", name, faults, want)
		}
		if err := faults.Err(); err != nil && strings.Contains(err.Error(), own.Text()[:20]) {
			t.Errorf("%s: the fault repeats the key", name)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(filepath.Join(dir, "good"), 65534, 65534); err != nil {
			t.Fatal(err)
		}
		c := site()
		c.Key = "good"
		if err := c.Files(dir).Err(); err == nil || !strings.Contains(err.Error(), "belongs to user 65534, who can read and replace it") {
			t.Errorf("a stranger's key: %v", err)
		}
		if err := os.Chown(filepath.Join(dir, "good"), 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		owner, effective uint32
		want             bool
	}{{0, 0, true}, {0, 990, true}, {990, 990, true}, {1000, 990, false}, {4294967294, 0, false}} {
		if trusted(tt.owner, tt.effective) != tt.want {
			t.Errorf("a key of user %d for user %d: trusted is %v", tt.owner, tt.effective, !tt.want)
		}
	}
	units := func() (uint32, uint32, bool) { return 990, 991, true }
	for _, tt := range []struct {
		mode         os.FileMode
		owner, group uint32
		want         bool
	}{
		{0o600, 0, 0, false}, {0o600, 990, 991, false}, {0o640, 0, 991, false}, {0o640, 0, 0, true}, {0o640, 990, 991, true},
		{0o660, 0, 991, true}, {0o644, 0, 991, true}, {0o604, 0, 991, true},
	} {
		if exposed(tt.mode, tt.owner, tt.group, units) != tt.want {
			t.Errorf("a key of mode %04o, user %d and group %d: exposed is %v", tt.mode, tt.owner, tt.group, !tt.want)
		}
	}
	c := site()
	c.Key, c.Peers[1].PublicKey, c.Peers[0].PresharedKey = "good", own.Public().String(), "open"
	if err := c.Files(dir).Err(); err == nil || !strings.Contains(err.Error(), "peers[1].public_key: is that of this gateway") || !strings.Contains(err.Error(), "peers[0].preshared_key:") {
		t.Errorf("got %v", err)
	}
}

// TestHalvesOfADefaultRoute: what replaces a default route begins with unspecified addresses, and
// is valid.
func TestHalvesOfADefaultRoute(t *testing.T) {
	for _, p := range []string{"0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1", "0.0.0.0/0", "::/0"} {
		if !unicast(netip.MustParsePrefix(p)) && netip.MustParsePrefix(p).Bits() > 0 {
			t.Errorf("%s is refused", p)
		}
	}
}

// TestKeyOfUnits: on a host with the user of the units, they can read a key that root makes, and so
// can a daemon that root has started, which has dropped its access to files of others.
func TestKeyOfUnits(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give files to others")
	}
	const group = 65534
	units := func() (uint32, uint32, bool) { return 65534, group, true }
	file := filepath.Join(t.TempDir(), "gw.key")
	if err := writeKey(file, handshake.PrivateKey{1}, units); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	of := info.Sys().(*syscall.Stat_t)
	if of.Uid != 0 || of.Gid != group || info.Mode().Perm() != 0o640 || exposed(info.Mode().Perm(), of.Uid, of.Gid, units) {
		t.Errorf("the key is of user %d and group %d, with mode %04o", of.Uid, of.Gid, info.Mode().Perm())
	}
}

// TestKeyWithoutDirectory: who writes a key where there is no directory learns what to do.
func TestKeyWithoutDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tabane", "gw.key")
	if err := WriteKey(file, handshake.PrivateKey{1}); err == nil || !strings.Contains(err.Error(), "mkdir -p "+filepath.Dir(file)) {
		t.Errorf("%v", err)
	}
}
