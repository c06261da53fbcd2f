package nft

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// outcome is what rules do with the first packet of a connection.
type outcome int

const (
	passes outcome = iota // it goes on to the next rule
	accepted
	dropped
)

// Blocking returns the chains at the hook forward that drop the first packet of every connection
// between two of these interfaces, of one of the families "ip" and "ip6". What is not known of a
// rule that accepts packets is taken to be true, so that a chain which drops only some of them is
// not among them.
func Blocking(links []string, families ...string) ([]Chain, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	all, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	r := ruleset{Packets: Packets{Lines: links, Out: links}, conn: conn}
	var list []Chain
	for _, c := range all {
		name, ok := nameOf(c)
		if !ok || c.Hooknum == nil || c.Type != nftables.ChainTypeFilter || *c.Hooknum != *nftables.ChainHookForward ||
			name.Family != "inet" && !slices.Contains(families, name.Family) {
			continue
		}
		does, err := r.follow(c, map[string]bool{})
		if err != nil {
			return nil, fmt.Errorf("list rules of chain %q: %w", name, err)
		}
		if does == dropped || does == passes && c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
			list = append(list, name)
		}
	}
	for _, l := range legacies {
		if !slices.Contains(families, l.family) {
			continue
		}
		old, err := l.blocking(&r.Packets)
		if err != nil {
			return nil, err
		}
		list = append(list, old...)
	}
	return list, nil
}

// Accept is the command that has the chain accept packets which arrive at interfaces before all others.
func (c Chain) Accept(links []string) string {
	for _, l := range legacies {
		if c.Family == l.command {
			var all []string
			for _, link := range links {
				all = append(all, fmt.Sprintf("%s -t %s -I %s -i %s -j ACCEPT", c.Family, c.Table, c.Name, link))
			}
			return strings.Join(all, "; ")
		}
	}
	return fmt.Sprintf("nft insert rule %v iifname { %s } accept", c, strings.Join(links, ", "))
}

// follow returns what a chain does. visited are the chains on the way to it.
func (r *ruleset) follow(c *nftables.Chain, visited map[string]bool) (outcome, error) {
	visited[c.Name] = true
	defer delete(visited, c.Name)
	rules, err := r.conn.GetRules(c.Table, c)
	if err != nil {
		return passes, err
	}
	for _, rule := range rules {
		if matches, _ := r.examine(rule.Exprs); !matches {
			continue
		}
		does, next, always := decide(rule.Exprs)
		if next != "" && !visited[next] {
			if does, err = r.follow(&nftables.Chain{Table: c.Table, Name: next}, visited); err != nil {
				return passes, err
			}
		}
		if does == accepted || does == dropped && always {
			return does, nil
		}
	}
	return passes, nil
}

// decide returns what a rule whose interfaces match does: an outcome, or the chain that it
// continues in. always: it is for all packets between the interfaces.
func decide(rule []expr.Any) (does outcome, next string, always bool) {
	always = true
	var state stateMatch
	for i, e := range rule {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Meta:
			always = always && isInterface(e.Key)
		case *expr.Cmp:
			always = always && i > 0 && isMeta(rule[i-1])
		case *expr.Ct:
			always = false
			state.load(e)
		case *expr.Bitwise:
			always = false
			state.mask(e)
		case *expr.Match:
			always = false
			state.match(e)
		case *expr.Lookup:
			always = false
			if e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT {
				return accepted, "", false // it may be
			}
		case *expr.Reject:
			return dropped, "", always
		case *expr.Target:
			if e.Name == "REJECT" {
				return dropped, "", always
			}
			return passes, "", false
		case *expr.Verdict:
			switch {
			case e.Kind == expr.VerdictDrop:
				return dropped, "", always
			case state.established:
			case e.Kind == expr.VerdictAccept:
				return accepted, "", always
			case e.Kind == expr.VerdictJump, e.Kind == expr.VerdictGoto:
				return passes, e.Chain, always
			}
			return passes, "", false
		default:
			always = false
		}
	}
	return passes, "", false
}

func isInterface(key expr.MetaKey) bool {
	return key == expr.MetaKeyIIFNAME || key == expr.MetaKeyOIFNAME || key == expr.MetaKeyIIF || key == expr.MetaKeyOIF
}

func isMeta(e expr.Any) bool {
	m, ok := e.(*expr.Meta)
	return ok && isInterface(m.Key)
}

// stateMatch is whether a rule is for packets of connections that exist already.
type stateMatch struct{ loaded, established bool }

// ctNew is the state of the first packet of a connection, in nftables and in xt_conntrack.
const ctNew = 1 << 3

func (s *stateMatch) load(e *expr.Ct) { s.loaded = e.Key == expr.CtKeySTATE && !e.SourceRegister }

func (s *stateMatch) mask(e *expr.Bitwise) {
	if mask, _, ok := ofMark(e); ok && s.loaded {
		s.established = s.established || mask&ctNew == 0
	}
	s.loaded = false
}

func (s *stateMatch) match(e *expr.Match) {
	const states = 1 // XT_CONNTRACK_STATE
	switch info := e.Info.(type) {
	case *xt.ConntrackMtinfo3:
		s.established = s.established || info.MatchFlags&states != 0 && info.InvertFlags&states == 0 && info.StateMask&ctNew == 0
	case *xt.Unknown:
		// struct xt_state_info.
		if e.Name == "state" && len(*info) >= 4 {
			s.established = s.established || binary.NativeEndian.Uint32(*info)&ctNew == 0
		}
	}
}
