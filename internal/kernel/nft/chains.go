package nft

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Chain is a base chain. The family of one of iptables-legacy is the command that changes it.
type Chain struct{ Family, Table, Name string }

// String is as nft writes it, as in "inet filter forward".
func (c Chain) String() string { return c.Family + " " + c.Table + " " + c.Name }

// AcceptMark is the command that has the chain accept packets with a mark in some bits before all
// others.
func (c Chain) AcceptMark(mark, bits uint32) string {
	for _, l := range legacies {
		if c.Family == l.command {
			return fmt.Sprintf("%s -t %s -I %s -m mark --mark %d/%#x -j ACCEPT", c.Family, c.Table, c.Name, mark, bits)
		}
	}
	return fmt.Sprintf("nft insert rule %v %v", c, Passage{Mark: mark, Bits: bits})
}

// families are those that forwarded packets of IP pass.
var families = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
}

// Untracked returns the chains that may drop forwarded packets of which connection tracking sees
// one direction only, or that arrive on another interface than packets to their source leave by:
// those at the hooks prerouting and forward that drop by default, by the state of a connection, or
// by a route lookup (fib); and those that may replace the mark that these are accepted by. Chains
// that accept packets with the mark before are not among them. Rules of iptables-nft and
// iptables-legacy are read as well. With an error, the list has what could be read.
func Untracked(p Packets) ([]Chain, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	all, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	r := ruleset{Packets: p, conn: conn, drops: map[Chain]bool{}}
	var list []Chain
	for _, c := range all {
		name, ok := nameOf(c)
		if !ok || c.Hooknum == nil || c.Type != nftables.ChainTypeFilter || !forwards(c) {
			continue
		}
		untracked, err := r.untracked(c)
		if err != nil {
			return list, fmt.Errorf("list rules of chain %q: %w", name, err)
		}
		if untracked {
			list = append(list, name)
		}
	}
	for _, l := range legacies {
		old, failed := l.untracked(&p)
		list, err = append(list, old...), errors.Join(err, failed)
	}
	return list, err
}

// forwards reports whether packets that are forwarded pass a base chain before they are routed, or
// after that.
func forwards(c *nftables.Chain) bool {
	return *c.Hooknum == *nftables.ChainHookForward || *c.Hooknum == *nftables.ChainHookPrerouting
}

func nameOf(c *nftables.Chain) (Chain, bool) {
	family, ok := families[c.Table.Family]
	return Chain{family, c.Table.Name, c.Name}, ok
}

// ruleset reads rules, but for those of an owner. drops are the chains that were read already.
type ruleset struct {
	Packets
	conn    *nftables.Conn
	drops   map[Chain]bool
	without string
}

// untracked reports whether the packets may be dropped in a base chain, or lose their mark.
func (r *ruleset) untracked(c *nftables.Chain) (bool, error) {
	rules, err := r.conn.GetRules(c.Table, c)
	if err != nil {
		return false, err
	}
	for _, rule := range rules {
		if r.without != "" && ownedBy(rule, r.without) {
			continue
		}
		if accepts(rule.Exprs, r.Mark) {
			return false, nil
		}
		if drops, err := r.mayDrop(c.Table, rule.Exprs); drops || err != nil {
			return drops, err
		}
	}
	return c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop, nil
}

// accepts reports whether a rule accepts all packets with the mark.
func accepts(rule []expr.Any, mark uint32) bool {
	marked, loaded := false, false
	for i, e := range rule {
		switch e := e.(type) {
		case *expr.Meta:
			loaded = e.Key == expr.MetaKeyMARK && !e.SourceRegister && i == 0
			if !loaded {
				return false
			}
		case *expr.Bitwise:
			mask, xor, ok := ofMark(e)
			if !ok || !loaded || i != 1 {
				return false
			}
			mark = mark&mask ^ xor
		case *expr.Cmp:
			marked = loaded && e.Op == expr.CmpOpEq && bytes.Equal(e.Data, binaryutil.NativeEndian.PutUint32(mark))
			loaded = false
			if !marked {
				return false
			}
		case *expr.Counter:
		case *expr.Verdict:
			return marked && e.Kind == expr.VerdictAccept
		default:
			return false
		}
	}
	return false
}

// mayDrop reports whether a rule drops all packets, or by what is not known of these, or replaces
// their mark, or jumps to one that does.
func (r *ruleset) mayDrop(t *nftables.Table, rule []expr.Any) (bool, error) {
	if matches, remarks := r.examine(rule); !matches || remarks {
		return remarks, nil
	}
	all := true
	state := false
	for _, e := range rule {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log, *expr.Limit:
		case *expr.Ct, *expr.Fib:
			state = true
		case *expr.Match:
			all = false
			state = state || e.Name == "conntrack" || e.Name == "state" || e.Name == "rpfilter"
		case *expr.Lookup:
			if e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT {
				return state, nil
			}
			all = false
		case *expr.Reject:
			return all || state, nil
		case *expr.Target:
			return e.Name == "REJECT" && (all || state), nil
		case *expr.Verdict:
			switch e.Kind {
			case expr.VerdictDrop:
				return all || state, nil
			case expr.VerdictJump, expr.VerdictGoto:
				return r.chainDrops(&nftables.Chain{Table: t, Name: e.Chain})
			default:
				return false, nil
			}
		default:
			all = false
		}
	}
	return false, nil
}

// chainDrops reports whether a rule of a chain that another one jumps to may drop packets, or
// replace their mark.
func (r *ruleset) chainDrops(c *nftables.Chain) (bool, error) {
	name, _ := nameOf(c)
	if drops, ok := r.drops[name]; ok {
		return drops, nil
	}
	r.drops[name] = false // the kernel has no loops
	rules, err := r.conn.GetRules(c.Table, c)
	if err != nil {
		return false, err
	}
	for _, rule := range rules {
		drops, err := r.mayDrop(c.Table, rule.Exprs)
		if err != nil {
			return false, err
		}
		r.drops[name] = r.drops[name] || drops
	}
	return r.drops[name], nil
}
