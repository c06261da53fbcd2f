package nft

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
)

// Permit has the chains that would drop passages accept them, by rules at their beginning whose
// comment begins with the owner, and removes other rules of the owner. Rules without that comment
// are not touched. It returns what it has inserted.
//
// Chains of iptables-legacy, and of tables that belong to a process, stay as they are: Blocking
// still returns them. Chains that Untracked returns for marked packets get a rule that accepts those
// by their mark.
func Permit(owner string, passages []Passage, marked ...Packets) (inserted []Block, err error) {
	r, err := read()
	if err != nil {
		if len(passages)+len(marked) == 0 {
			err = absent(err)
		}
		return nil, err
	}
	changes, err := r.changes(owner, passages, marked)
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, c := range changes {
		if err := c.apply(r.conn, owner); err != nil {
			failed = append(failed, fmt.Errorf("change rules of chain %q: %w", c.name, err))
			continue
		}
		inserted = append(inserted, c.insert...)
	}
	return inserted, errors.Join(failed...)
}

// Permitted reports whether Permit would change nothing.
func Permitted(owner string, passages []Passage, marked ...Packets) (bool, error) {
	r, err := read()
	if err != nil {
		return false, err
	}
	changes, err := r.changes(owner, passages, marked)
	return len(changes) == 0, err
}

// change is what has to be done in a chain.
type change struct {
	chain  *nftables.Chain
	name   Chain
	remove []*nftables.Rule
	insert []Block
}

// changes returns those of all base chains. Where the owner's rules are the desired ones, and no
// other rule has come before them, there is none.
func (r *reader) changes(owner string, passages []Passage, marked []Packets) ([]change, error) {
	desired, err := r.lacking(passages, marked, owner)
	if err != nil {
		return nil, err
	}
	dropped, err := r.lacking(passages, marked, "")
	if err != nil {
		return nil, err
	}
	var list []change
	for _, base := range r.bases {
		c := change{chain: base}
		c.name, _ = nameOf(base)
		var have, want []string
		rules, err := r.rulesOf(base.Table, base.Name)
		if err != nil {
			return nil, err
		}
		for _, rule := range rules {
			if ownedBy(rule, owner) {
				text, _ := userdata.GetString(rule.UserData, userdata.TypeComment)
				c.remove, have = append(c.remove, rule), append(have, text)
			}
		}
		for _, b := range desired {
			// IPv4 and IPv6 have the same rule in a table of both.
			if text := comment(owner, b.Passage); b.Chain == c.name && !b.Owned && !slices.Contains(want, text) {
				c.insert, want = append(c.insert, b), append(want, text)
			}
		}
		still := slices.ContainsFunc(dropped, func(b Block) bool { return b.Chain == c.name && !b.Owned })
		if still || !slices.Equal(have, want) {
			list = append(list, c)
		}
	}
	return list, nil
}

// lacking returns what chains may drop, if they do not have the rules of an owner.
func (r *reader) lacking(passages []Passage, marked []Packets, without string) ([]Block, error) {
	list, err := r.blocking(passages, without)
	if err != nil {
		return nil, err
	}
	for _, m := range marked {
		rules := ruleset{Packets: m, conn: r.conn, drops: map[Chain]bool{}, without: without}
		for _, c := range r.bases {
			if !forwards(c) {
				continue
			}
			name, _ := nameOf(c)
			untracked, err := rules.untracked(c)
			if err != nil {
				return nil, fmt.Errorf("list rules of chain %q: %w", name, err)
			}
			if untracked {
				list = append(list, Block{name, Passage{Mark: m.Mark, Bits: m.Bits}, r.owned[Chain{name.Family, name.Table, ""}]})
			}
		}
	}
	return list, nil
}

// comment is that of a rule of an owner.
func comment(owner string, p Passage) string { return owner + " " + p.String() }

// apply replaces the owner's rules in one step.
func (c *change) apply(conn *nftables.Conn, owner string) error {
	for _, r := range c.remove {
		if err := conn.DelRule(r); err != nil {
			return err
		}
	}
	for _, b := range slices.Backward(c.insert) { // each comes before the one inserted last
		conn.InsertRule(&nftables.Rule{
			Table: c.chain.Table, Chain: c.chain, Exprs: b.Passage.exprs(c.name),
			UserData: userdata.AppendString(nil, userdata.TypeComment, comment(owner, b.Passage)),
		})
	}
	return conn.Flush()
}
