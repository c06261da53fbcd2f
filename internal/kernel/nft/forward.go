package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// outcome is what rules do with a packet.
type outcome int

const (
	passes outcome = iota // it goes on to the next rule
	returned
	accepted
	dropped
)

// Block is a base chain that drops a passage.
type Block struct {
	Chain   Chain
	Passage Passage
	// Owned: the table belongs to the process that made it, and no other can change it.
	Owned bool
}

// Remedy is the command that has the chain accept the packets before all others.
func (b Block) Remedy() string {
	c := b.Chain
	if b.Owned {
		return fmt.Sprintf("have the owner of table %q accept \"%v\" (firewalld: set NftablesTableOwner=no in firewalld.conf, or use its zones)", c.Family+" "+c.Table, b.Passage)
	}
	for _, l := range legacies {
		command := map[string]string{l.command: l.command, l.family: l.nft}[c.Family]
		if command == l.command || command != "" && c.byIPTables() {
			return fmt.Sprintf("%s -t %s -I %s %s", command, c.Table, c.Name, b.Passage.arguments())
		}
	}
	return fmt.Sprintf("nft insert rule %v %v", c, b.Passage)
}

// Accept is the command that has the chain accept what arrives at interfaces before all others.
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

// Blocking returns the base chains that drop all packets of a passage, of nftables, iptables-nft
// and iptables-legacy. What is not known of a rule that accepts packets is taken to be true, so
// that a chain which drops only some of them is not among them. With an error, the list has what
// could be read.
func Blocking(passages []Passage) ([]Block, error) {
	if len(passages) == 0 {
		return nil, nil
	}
	r, err := read()
	if err != nil {
		return nil, err
	}
	list, err := r.blocking(passages, "")
	for _, l := range legacies {
		old, failed := l.blocking(passages)
		list, err = append(list, old...), errors.Join(err, failed)
	}
	return list, err
}

// reader reads the rules of nftables, each chain and set once.
type reader struct {
	conn  *nftables.Conn
	bases []*nftables.Chain
	owned map[Chain]bool // tables, with no name of a chain
	rules map[Chain][]*nftables.Rule
	sets  map[Chain]*set // with the name of a set in place of a chain's
}

// read lists the base chains that filter packets of IP.
func read() (*reader, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	r := &reader{conn: conn, owned: map[Chain]bool{}, rules: map[Chain][]*nftables.Rule{}, sets: map[Chain]*set{}}
	all, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	for _, c := range all {
		if _, ok := nameOf(c); ok && c.Hooknum != nil && c.Type == nftables.ChainTypeFilter {
			r.bases = append(r.bases, c)
		}
	}
	if len(r.bases) == 0 {
		return r, nil
	}
	tables, err := conn.ListTables()
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	const owner = 2 // NFT_TABLE_F_OWNER; the library reads the flags in the order of the host
	for _, t := range tables {
		r.owned[Chain{families[t.Family], t.Name, ""}] = (t.Flags|bits.ReverseBytes32(t.Flags))&owner != 0
	}
	return r, nil
}

// rulesOf returns the rules of a chain.
func (r *reader) rulesOf(t *nftables.Table, chain string) ([]*nftables.Rule, error) {
	name := Chain{families[t.Family], t.Name, chain}
	rules, ok := r.rules[name]
	if !ok {
		var err error
		if rules, err = r.conn.GetRules(t, &nftables.Chain{Table: t, Name: chain}); err != nil {
			return nil, fmt.Errorf("list rules of chain %q: %w", name, err)
		}
		r.rules[name] = rules
	}
	return rules, nil
}

// blocking returns the chains of nftables that drop a passage. Rules of an owner are left out.
func (r *reader) blocking(passages []Passage, without string) ([]Block, error) {
	var list []Block
	for _, c := range r.bases {
		name, _ := nameOf(c)
		for _, p := range passages {
			if *c.Hooknum != p.hook() || name.Family != "inet" && name.Family != p.Version {
				continue
			}
			w := walk{reader: r, passage: p, without: without, outcomes: map[string]outcome{}}
			does, err := w.follow(c.Table, c.Name)
			if err != nil {
				return list, err
			}
			if does == dropped || does != accepted && c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
				list = append(list, Block{name, p, r.owned[Chain{name.Family, name.Table, ""}]})
			}
		}
	}
	return list, nil
}

// walk follows a passage through the chains of a table.
type walk struct {
	*reader
	passage  Passage
	without  string
	outcomes map[string]outcome // of chains that were followed already
}

// follow returns what a chain does.
func (w *walk) follow(t *nftables.Table, chain string) (outcome, error) {
	if does, ok := w.outcomes[chain]; ok {
		return does, nil
	}
	w.outcomes[chain] = passes // the kernel has no loops
	rules, err := w.rulesOf(t, chain)
	if err != nil {
		return passes, err
	}
	mayReturn := false // some packets may have left the chain
	for _, rule := range rules {
		if w.without != "" && ownedBy(rule, w.without) {
			continue
		}
		d, err := w.decide(t, rule.Exprs)
		if err == nil && d.next != "" {
			d.does, err = w.follow(t, d.next)
			switch {
			case d.does <= returned && d.leaves:
				d.does = returned
			case d.does == returned:
				d.does = passes
			}
		}
		if err != nil {
			return passes, err
		}
		switch {
		case d.does == dropped && !d.always:
			d.does = passes
		case d.does == returned && !d.always:
			d.does, mayReturn = passes, true
		case d.does == dropped && mayReturn:
			d.does = returned
		}
		if d.does != passes {
			w.outcomes[chain] = d.does
			return d.does, nil
		}
	}
	return passes, nil
}

// decision is what a rule does: an outcome, or the chain that it continues in. always: it matches
// all packets of the passage. leaves: it does not come back from the next chain.
type decision struct {
	does           outcome
	next           string
	always, leaves bool
}

func (d *decision) verdict(kind expr.VerdictKind, chain string) {
	switch kind {
	case expr.VerdictDrop:
		d.does = dropped
	case expr.VerdictReturn:
		d.does = returned
	case expr.VerdictJump, expr.VerdictGoto:
		d.next, d.leaves = chain, kind == expr.VerdictGoto
	case expr.VerdictContinue, expr.VerdictBreak:
	default: // others may accept it
		d.does = accepted
	}
}

// decide evaluates a rule.
func (w *walk) decide(t *nftables.Table, rule []expr.Any) (decision, error) {
	d := decision{always: true}
	known := map[uint32]content{} // of registers
	for _, e := range rule {
		is := yes
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Meta:
			if !e.SourceRegister {
				known[e.Register] = content{value: w.passage.meta(e.Key)}
			}
		case *expr.Ct:
			if !e.SourceRegister {
				known[e.Register] = content{value: w.passage.conntrack(e.Key)}
			}
		case *expr.Payload:
			if e.OperationType == expr.PayloadLoad {
				known[e.DestRegister] = w.passage.payload(e)
			}
		case *expr.Bitwise:
			known[e.DestRegister] = masked(known[e.SourceRegister], e)
		case *expr.Immediate:
			known[e.Register] = content{value: e.Data}
		case *expr.Cmp:
			is = compare(known[e.Register], e)
		case *expr.Lookup:
			var found nftables.SetElement
			if c := known[e.SourceRegister]; c.value == nil || c.from > 0 {
				is = maybe // whatever the set has, which may be long
			} else {
				s, err := w.set(t, e.SetName)
				if err != nil {
					return d, err
				}
				found, is = s.find(c)
			}
			switch {
			case e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT && is == maybe:
				return decision{does: accepted}, nil // it may be
			case e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT && is == yes:
				kind, chain, err := verdictOf(found.Val)
				d.verdict(kind, chain)
				return d, err
			case e.IsDestRegSet:
				known[e.DestRegister] = content{}
			case e.Invert:
				is = yes - is
			}
		case *expr.Match:
			is = w.passage.matches(e.Name, e.Info)
		case *expr.Target:
			if e.Name != "REJECT" {
				return decision{}, nil
			}
			d.does = dropped
			return d, nil
		case *expr.Reject:
			d.does = dropped
			return d, nil
		case *expr.Queue:
			d.does = accepted // it may be
			return d, nil
		case *expr.Verdict:
			d.verdict(e.Kind, e.Chain)
			return d, nil
		default:
			clear(known)
			is = maybe
		}
		if is == no {
			return decision{}, nil
		}
		d.always = d.always && is == yes
	}
	return decision{}, nil
}

// content is what is known of a register: its bytes from some number on; without a value, nothing.
type content struct {
	value []byte
	from  int
}

// masked returns the result of an expression on a register.
func masked(c content, e *expr.Bitwise) content {
	if c.from > 0 || len(e.Mask) != len(c.value) || len(e.Xor) != len(c.value) {
		return content{}
	}
	var result []byte
	for i, b := range c.value {
		result = append(result, b&e.Mask[i]^e.Xor[i])
	}
	return content{value: result}
}

// compare compares a register.
func compare(c content, e *expr.Cmp) truth {
	if c.value == nil || len(e.Data) > len(c.value) || len(e.Data) < c.from {
		return maybe
	}
	// The name of an interface may be compared as far as its beginning.
	order := bytes.Compare(c.value[c.from:len(e.Data)], e.Data[c.from:])
	if c.from > 0 && (order == 0 || e.Op != expr.CmpOpEq && e.Op != expr.CmpOpNeq) {
		return maybe
	}
	switch e.Op {
	case expr.CmpOpEq:
		return truthOf(order == 0)
	case expr.CmpOpNeq:
		return truthOf(order != 0)
	case expr.CmpOpLt:
		return truthOf(order < 0)
	case expr.CmpOpLte:
		return truthOf(order <= 0)
	case expr.CmpOpGt:
		return truthOf(order > 0)
	case expr.CmpOpGte:
		return truthOf(order >= 0)
	default:
		return maybe
	}
}

// set is a set or map of a table; of intervals, each begins with an element and ends before
// another.
type set struct {
	elements []nftables.SetElement
	interval bool
}

// set returns a set or map, which may be anonymous.
func (r *reader) set(t *nftables.Table, name string) (*set, error) {
	at := Chain{families[t.Family], t.Name, name}
	if s, ok := r.sets[at]; ok {
		return s, nil
	}
	found, err := r.conn.GetSetByName(t, name)
	if err != nil {
		return nil, fmt.Errorf("find set %q: %w", at, err)
	}
	elements, err := r.conn.GetSetElements(found)
	if err != nil {
		return nil, fmt.Errorf("list elements of set %q: %w", at, err)
	}
	s := &set{elements, found.Interval}
	if s.interval {
		slices.SortFunc(s.elements, func(a, b nftables.SetElement) int {
			if order := bytes.Compare(a.Key, b.Key); order != 0 || a.IntervalEnd == b.IntervalEnd {
				return order
			}
			if a.IntervalEnd {
				return -1
			}
			return 1
		})
	}
	r.sets[at] = s
	return s, nil
}

// find returns the element for a key.
func (s *set) find(c content) (found nftables.SetElement, is truth) {
	key := c.value
	for _, e := range s.elements {
		switch {
		case len(e.Key) != len(key), len(e.KeyEnd) > 0: // of several values
			return found, maybe
		case s.interval && bytes.Compare(e.Key, key) <= 0:
			found, is = e, truthOf(!e.IntervalEnd)
		case bytes.Equal(e.Key, key):
			return e, yes
		}
	}
	return found, is
}

// verdictOf parses the verdict of an element of a map (NFTA_VERDICT_CODE and NFTA_VERDICT_CHAIN).
func verdictOf(value []byte) (kind expr.VerdictKind, chain string, err error) {
	d, err := netlink.NewAttributeDecoder(value)
	if err != nil {
		return 0, "", fmt.Errorf("read verdict: %w", err)
	}
	d.ByteOrder = binary.BigEndian
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_VERDICT_CODE:
			kind = expr.VerdictKind(int32(d.Uint32()))
		case unix.NFTA_VERDICT_CHAIN:
			chain = d.String()
		}
	}
	return kind, chain, d.Err()
}

// ownedBy reports whether a rule has the comment of an owner.
func ownedBy(r *nftables.Rule, owner string) bool {
	text, ok := userdata.GetString(r.UserData, userdata.TypeComment)
	return ok && len(text) > len(owner) && text[:len(owner)] == owner && text[len(owner)] == ' '
}
