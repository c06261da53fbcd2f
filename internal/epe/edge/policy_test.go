package edge

import (
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/epe/selection"
)

func TestPolicies(t *testing.T) {
	both := []PolicyPath{{Peer: "a", Commit: 1e6}, {Peer: "b"}}
	shares := []PolicyPath{{Peer: "a", Share: 80}, {Peer: "b", Share: 20}}
	c := testConfig()
	a, b := c.Peers[0].Name, c.Peers[1].Name
	named := func(paths []PolicyPath) []PolicyPath {
		all := make([]PolicyPath, len(paths))
		for i, p := range paths {
			if all[i] = p; p.Peer == "a" {
				all[i].Peer = a
			} else if p.Peer == "b" {
				all[i].Peer = b
			}
		}
		return all
	}
	for name, tt := range map[string]struct {
		policies []Policy
		paths    Paths
		fault    string
	}{
		"all of them": {policies: []Policy{
			{Port: 1, Policy: "throughput"}, {Port: 2, Policy: "latency"}, {Mark: 3, Policy: "steady"}, {Cgroup: "/a.slice", Policy: "cost", Paths: both},
			{Policy: "ratio", Paths: shares},
		}},
		"unknown":           {policies: []Policy{{Policy: "latancy"}}, fault: `mptcp.policies[0].policy: must be one of throughput, latency, steady, cost, ratio, got "latancy", did you mean`},
		"none":              {policies: []Policy{{Port: 80}}, fault: `mptcp.policies[0].policy: must be one of`},
		"kernel":            {policies: []Policy{{Policy: "latency"}}, paths: Paths{PathManager: KernelPathManager}, fault: `mptcp.policies: need path_manager: "user"`},
		"hidden by all":     {policies: []Policy{{Policy: "latency"}, {Port: 80, Policy: "steady"}}, fault: "mptcp.policies[1]: is never used: policies[0] matches all"},
		"hidden by cgroup":  {policies: []Policy{{Cgroup: "/a", Policy: "latency"}, {Cgroup: "/a/b", Mark: 1, Policy: "steady"}}, fault: "mptcp.policies[1]: is never used"},
		"not hidden":        {policies: []Policy{{Cgroup: "/a", Policy: "latency"}, {Cgroup: "/ab", Policy: "steady"}}},
		"cgroup":            {policies: []Policy{{Cgroup: "a/../b", Policy: "latency"}}, fault: `mptcp.policies[0].cgroup: must be a path from the root`},
		"paths":             {policies: []Policy{{Policy: "latency", Paths: both}}, fault: "mptcp.policies[0].paths: has no effect with latency"},
		"no paths":          {policies: []Policy{{Policy: "cost"}}, fault: "mptcp.policies[0].paths: must name at least two egress peers, got 0"},
		"peer":              {policies: []Policy{{Policy: "ratio", Paths: append([]PolicyPath{{Peer: "z", Share: 1}}, shares...)}}, fault: `mptcp.policies[0].paths[0].peer: must be the name of an egress peer, got "z"`},
		"peer twice":        {policies: []Policy{{Policy: "ratio", Paths: append(shares, shares[0])}}, fault: "mptcp.policies[0].paths[2].peer:"},
		"no commit":         {policies: []Policy{{Policy: "cost", Paths: []PolicyPath{{Peer: "a"}, {Peer: "b"}}}}, fault: "mptcp.policies[0].paths[0].commit: must be given"},
		"commit of last":    {policies: []Policy{{Policy: "cost", Paths: []PolicyPath{{Peer: "a", Commit: 1}, {Peer: "b", Commit: 1}}}}, fault: "mptcp.policies[0].paths[1].commit: must be left out"},
		"commit of ratio":   {policies: []Policy{{Policy: "ratio", Paths: []PolicyPath{{Peer: "a", Share: 1, Commit: 1}, {Peer: "b", Share: 1}}}}, fault: "mptcp.policies[0].paths[0].commit: is for cost"},
		"share of cost":     {policies: []Policy{{Policy: "cost", Paths: []PolicyPath{{Peer: "a", Share: 1, Commit: 1}, {Peer: "b"}}}}, fault: "mptcp.policies[0].paths[0].share: is for ratio"},
		"no share":          {policies: []Policy{{Policy: "ratio", Paths: []PolicyPath{{Peer: "a", Share: 1}, {Peer: "b"}}}}, fault: "mptcp.policies[0].paths[1].share: must be > 0"},
		"far too many ones": {policies: make([]Policy, maxPolicies+1), fault: "mptcp.policies: must be at most 1000, got 1001"},
	} {
		c := testConfig()
		c.MPTCP = tt.paths
		for _, p := range tt.policies {
			p.Paths = named(p.Paths)
			c.MPTCP.Policies = append(c.MPTCP.Policies, p)
		}
		err := c.Check().Err()
		if (err == nil) != (tt.fault == "") || err != nil && !strings.Contains(err.Error(), tt.fault) {
			t.Errorf("%s: %v, want %q", name, err, tt.fault)
		}
	}
}

func TestRules(t *testing.T) {
	c := testConfig()
	c.MPTCP.Policies = []Policy{{Port: 80, Mark: 3, Cgroup: "/a", Policy: "cost", Paths: []PolicyPath{{Peer: c.Peers[1].Name, Commit: 8e6}, {Peer: c.Peers[0].Name}}}}
	rules := c.rules()
	if len(rules) != 1 || rules[0].Policy != selection.Cost || rules[0].Port != 80 || rules[0].Mark != 3 || rules[0].Cgroup != "/a" ||
		rules[0].Paths[0].Peer != c.Peers[1].Address || rules[0].Paths[0].Commit != 1e6 || rules[0].Paths[1].Peer != c.Peers[0].Address {
		t.Errorf("%+v", rules)
	}
}
