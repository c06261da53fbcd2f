package edge

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/pathmanager"
	"github.com/tabane/tabane/internal/epe/selection"
)

// Policy chooses the paths of connections that meet its conditions.
type Policy struct {
	// Port is the server's port. Default: any. Example: 443
	Port uint16 `yaml:"port,omitempty"`
	// Mark is that of the server's sockets (SO_MARK), which an application may change while a
	// connection runs. Default: any. Example: 16
	Mark uint32 `yaml:"mark,omitempty"`
	// Cgroup is the path of a cgroup of version 2: that of the process which opened the listening
	// socket, or one above it. Default: any. Example: /system.slice/nginx.service
	Cgroup string `yaml:"cgroup,omitempty"`
	// Policy is how paths are chosen: throughput as with use: overflow; latency uses a further path
	// only in transfers that last for longer than its delay; steady keeps a stream on the first
	// path, and uses others soon after that is saturated; cost uses the paths in the order of the
	// list, each up to its commit; ratio divides the data by the shares. Example: latency
	Policy PolicyName `yaml:"policy"`
	// Paths are the egress peers of cost, the cheapest first, and of ratio. Other peers are used
	// only when none of these works.
	Paths []PolicyPath `yaml:"paths,omitempty"`
}

// PolicyName is the name of a policy of package selection.
type PolicyName string

// PolicyPath is an egress peer in a Policy.
type PolicyPath struct {
	// Peer is the name of an egress peer. Example: transit-a
	Peer string `yaml:"peer"`
	// Commit is the highest rate of payload that all connections of the policy together send to the
	// peer, as a mean over a second; cost needs it for all but the last. Example: 200Mbit/s
	Commit unit.Bandwidth `yaml:"commit,omitempty"`
	// Share is the peer's share of the data of a connection, relative to the shares of the others;
	// ratio needs it. Example: 80
	Share float64 `yaml:"share,omitempty"`
}

// maxPolicies bounds the list, which is searched for each connection.
const maxPolicies = 1000

// checkPolicies adds the faults of the policies.
func (c *Config) checkPolicies(faults *fault.List) {
	all := c.MPTCP.Policies
	if len(all) > 0 && c.MPTCP.manager() == KernelPathManager {
		faults.Add("mptcp.policies", "need path_manager: %q, without limits", UserPathManager)
	}
	if len(all) > maxPolicies {
		faults.Add("mptcp.policies", "must be at most %d, got %d", maxPolicies, len(all))
		return
	}
	for i := range all {
		at := fmt.Sprintf("mptcp.policies[%d]", i)
		p := &all[i]
		if j := slices.IndexFunc(all[:i], p.hiddenBy); j >= 0 {
			faults.Add(at, "is never used: policies[%d] matches all of its connections", j)
		}
		if p.Cgroup != "" && (!strings.HasPrefix(p.Cgroup, "/") || path.Clean(p.Cgroup) != p.Cgroup) {
			faults.Add(at+".cgroup", "must be a path from the root of the cgroups, as /system.slice/nginx.service, got %q", p.Cgroup)
		}
		policy, ok := selection.PolicyNamed(string(p.Policy))
		if !ok {
			names := selection.PolicyNames()
			faults.Add(at+".policy", "must be one of %s, got %q%s", strings.Join(names, ", "), p.Policy, fault.Suggest(string(p.Policy), names))
			continue
		}
		c.checkPolicyPaths(faults, at+".paths", p, policy)
	}
}

// hiddenBy reports whether an earlier policy is for all connections of this one.
func (p *Policy) hiddenBy(earlier Policy) bool {
	return (earlier.Port == 0 || earlier.Port == p.Port) && (earlier.Mark == 0 || earlier.Mark == p.Mark) &&
		(earlier.Cgroup == "" || earlier.Cgroup == p.Cgroup || strings.HasPrefix(p.Cgroup, strings.TrimSuffix(earlier.Cgroup, "/")+"/"))
}

func (c *Config) checkPolicyPaths(faults *fault.List, at string, p *Policy, policy selection.Policy) {
	ranks, shares := policy.Ranks(), policy.Shares()
	switch {
	case !ranks && !shares && len(p.Paths) > 0:
		faults.Add(at, "has no effect with %s: remove it", policy)
		return
	case (ranks || shares) && len(p.Paths) < 2:
		faults.Add(at, "must name at least two egress peers, got %d", len(p.Paths))
	}
	for i, path := range p.Paths {
		at := fmt.Sprintf("%s[%d]", at, i)
		if !slices.ContainsFunc(c.Peers, func(peer Peer) bool { return peer.Name == path.Peer }) {
			faults.Add(at+".peer", "must be the name of an egress peer, got %q", path.Peer)
		}
		if j := slices.IndexFunc(p.Paths[:i], func(other PolicyPath) bool { return other.Peer == path.Peer }); j >= 0 {
			faults.Add(at+".peer", "%q is already paths[%d]", path.Peer, j)
		}
		switch last := i == len(p.Paths)-1; {
		case path.Commit < 0:
			faults.Add(at+".commit", "must be > 0, got %s", path.Commit)
		case !ranks && path.Commit > 0:
			faults.Add(at+".commit", "is for %s", selection.Cost)
		case ranks && !last && path.Commit == 0:
			faults.Add(at+".commit", "must be given for all but the last: no path after this one would be used")
		case ranks && last && path.Commit > 0:
			faults.Add(at+".commit", "must be left out for the last: data beyond it would have no path")
		}
		switch {
		case !shares && path.Share != 0:
			faults.Add(at+".share", "is for %s", selection.Ratio)
		case shares && !(path.Share > 0 && path.Share <= 1e6):
			faults.Add(at+".share", "must be > 0 and at most 1000000, got %g", path.Share)
		}
	}
}

// rules are the policies for the path manager. The configuration must have been checked.
func (c *Config) rules() []pathmanager.Rule {
	addresses := map[string]netip.Addr{}
	for _, p := range c.Peers {
		addresses[p.Name] = p.Address
	}
	var rules []pathmanager.Rule
	for _, p := range c.MPTCP.Policies {
		policy, _ := selection.PolicyNamed(string(p.Policy))
		r := pathmanager.Rule{Port: p.Port, Mark: p.Mark, Cgroup: p.Cgroup, Policy: policy}
		for _, path := range p.Paths {
			r.Paths = append(r.Paths, pathmanager.RulePath{Peer: addresses[path.Peer], Share: path.Share, Commit: float64(path.Commit) / 8})
		}
		rules = append(rules, r)
	}
	return rules
}
