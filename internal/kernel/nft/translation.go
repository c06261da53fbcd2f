package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
)

// Translation is a table of its owner's that masquerades packets with some sources, and drops those
// of them that the kernel does not translate, because they belong to no connection: they would leave
// with a private source. To sources that are kept, it forwards only packets of connections that
// these have begun. Its fields do not change once it is in use.
type Translation struct {
	// Table is its name, in the family inet. Whatever else is in a table of that name is removed.
	Table string
	// Links are the interfaces that the packets leave by, Sources what contains their sources.
	Links   []string
	Sources []netip.Prefix
	// Kept are those of Sources that are not masqueraded, Open the parts of Kept to which others
	// may connect.
	Kept, Open []netip.Prefix

	// heldAt is the generation in which Holds last read the whole table and found it as desired.
	heldAt uint32
}

// The chains of a Translation: each base chain has a rule for each interface, which jumps to the
// chain with a rule for each family.
const (
	linksChain   = "postrouting"
	sourcesChain = "sources"
	leavingChain = "leaving"
	invalidChain = "untranslated"
	inboundChain = "forward"
	keptChain    = "kept"
)

// family is a version of IP, with its set of addresses of one kind.
type family struct {
	word, set string
	keys      nftables.SetDatatype
	protocol  byte
	offset    uint32 // of the address in the header, in bytes
}

var (
	sourceFamilies = []family{
		{word: "ip", set: "sources4", keys: nftables.TypeIPAddr, protocol: unix.NFPROTO_IPV4, offset: 12},
		{word: "ip6", set: "sources6", keys: nftables.TypeIP6Addr, protocol: unix.NFPROTO_IPV6, offset: 8},
	}
	keptFamilies = []family{
		{word: "ip", set: "kept4", keys: nftables.TypeIPAddr, protocol: unix.NFPROTO_IPV4, offset: 16},
		{word: "ip6", set: "kept6", keys: nftables.TypeIP6Addr, protocol: unix.NFPROTO_IPV6, offset: 24},
	}
)

// line is a rule, and its text as nft writes it. The text is also the rule's comment, by which
// rules of the kernel are compared with the desired ones.
type line struct {
	text  string
	exprs []expr.Any
}

func (l line) comment() []byte { return userdata.AppendString(nil, userdata.TypeComment, l.text) }

// links returns the rules of a base chain, which jump to another one from packets that leave by an
// interface (MetaKeyOIFNAME) or arrive at it (MetaKeyIIFNAME).
func (t *Translation) links(key expr.MetaKey, to string) []line {
	word := "oifname"
	if key == expr.MetaKeyIIFNAME {
		word = "iifname"
	}
	var list []line
	for _, link := range t.Links {
		list = append(list, line{fmt.Sprintf("%s %s jump %s", word, link, to), []expr.Any{
			&expr.Meta{Key: key, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceName(link)},
			&expr.Verdict{Kind: expr.VerdictJump, Chain: to},
		}})
	}
	return list
}

// in matches packets whose address is in the set of a family.
func (f family) in() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f.protocol}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.offset, Len: f.keys.Bytes},
		&expr.Lookup{SourceRegister: 1, SetName: f.set},
	}
}

// sources returns the rules that masquerade.
func (t *Translation) sources() []line {
	var list []line
	for _, f := range sourceFamilies {
		list = append(list, line{fmt.Sprintf("%s saddr @%s masquerade", f.word, f.set), append(f.in(), &expr.Masq{})})
	}
	return list
}

// tracked matches packets with one of the states of connection tracking.
func tracked(states uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(states), Xor: binaryutil.NativeEndian.PutUint32(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
	}
}

// untranslated returns the rules that drop packets which belong to no connection, such as the last
// ones of a connection that was forgotten: chains of type nat do not see them.
func (t *Translation) untranslated() []line {
	var list []line
	for _, f := range sourceFamilies {
		match := append(tracked(expr.CtStateBitINVALID), f.in()...)
		list = append(list, line{fmt.Sprintf("ct state invalid %s saddr @%s drop", f.word, f.set), append(match, &expr.Verdict{Kind: expr.VerdictDrop})})
	}
	return list
}

// kept returns the rules that drop packets to addresses which are kept.
func (t *Translation) kept() []line {
	const known = expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED
	list := []line{{"ct state established,related return", append(tracked(known), &expr.Verdict{Kind: expr.VerdictReturn})}}
	for _, f := range keptFamilies {
		list = append(list, line{fmt.Sprintf("%s daddr @%s drop", f.word, f.set), append(f.in(), &expr.Verdict{Kind: expr.VerdictDrop})})
	}
	return list
}

// families returns those of all sets.
func (t *Translation) families() []family {
	if len(t.Kept) == 0 {
		return sourceFamilies
	}
	return slices.Concat(sourceFamilies, keptFamilies)
}

// chains returns the rules of the chains.
func (t *Translation) chains() map[string][]line {
	all := map[string][]line{
		linksChain: t.links(expr.MetaKeyOIFNAME, sourcesChain), sourcesChain: t.sources(),
		leavingChain: t.links(expr.MetaKeyOIFNAME, invalidChain), invalidChain: t.untranslated(),
	}
	if len(t.Kept) > 0 {
		all[inboundChain], all[keptChain] = t.links(expr.MetaKeyIIFNAME, keptChain), t.kept()
	}
	return all
}

// bases are the base chains: their types, hooks and priorities.
var bases = map[string]nftables.Chain{
	linksChain:   {Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource},
	leavingChain: {Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityFilter},
	inboundChain: {Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter},
}

// elements returns the addresses of a family as elements of an interval set: the first address of
// each range, and the address after its last one, unless that is the last of all. The kernel wants
// ranges that neither overlap nor adjoin.
func (t *Translation) elements(f family) ([]nftables.SetElement, error) {
	in, without := t.Sources, t.Kept
	if slices.Contains(keptFamilies, f) {
		in, without = t.Kept, t.Open
	}
	var b netipx.IPSetBuilder
	for _, p := range in {
		if p.Addr().BitLen() == int(f.keys.Bytes)*8 {
			b.AddPrefix(p)
		}
	}
	for _, p := range without {
		b.RemovePrefix(p)
	}
	set, err := b.IPSet()
	if err != nil {
		return nil, err
	}
	var list []nftables.SetElement
	for _, r := range set.Ranges() {
		list = append(list, nftables.SetElement{Key: r.From().AsSlice()})
		if end := r.To().Next(); end.IsValid() {
			list = append(list, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return list, nil
}

const (
	// elementsPerMessage is how many elements a message adds: even, because both ends of a range
	// belong together. A list of elements has at most 64 KiB (its length has 16 bits).
	elementsPerMessage = 1024
	// elementSize bounds the bytes of an element in a message: three headers of 4, flags, an
	// address.
	elementSize = 48
	// batchSize bounds the bytes of all other messages of a batch, and of the answers to these.
	batchSize = 256 << 10
	// answerSize bounds the memory of the kernel for the answer to a message, in bytes.
	answerSize = 4 << 10
)

// Set makes the table in the kernel, in place of one of that name, in one step. It returns a
// *feature.Error if the kernel cannot do that.
func (t *Translation) Set() error {
	if err := t.set(); err != nil {
		return fmt.Errorf("make table %q: %w", t.Table, err)
	}
	return nil
}

func (t *Translation) set() error {
	families := t.families()
	elements := make([][]nftables.SetElement, len(families))
	count := 0
	for i, f := range families {
		var err error
		if elements[i], err = t.elements(f); err != nil {
			return err
		}
		count += len(elements[i])
	}
	// A batch is one message of the socket, and all of its answers wait there.
	c, err := nftables.New(nftables.WithSockOptions(func(s *netlink.Conn) error {
		return errors.Join(s.SetWriteBuffer(batchSize+count*elementSize), s.SetReadBuffer(batchSize+count/elementsPerMessage*answerSize))
	}))
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: t.Table, Family: nftables.TableFamilyINet}
	c.AddTable(table) // so that there is one to delete
	c.DelTable(table)
	c.AddTable(table)
	for i, f := range families {
		set := &nftables.Set{Table: table, Name: f.set, KeyType: f.keys, Interval: true}
		if err := c.AddSet(set, nil); err != nil {
			return err
		}
		for some := range slices.Chunk(elements[i], elementsPerMessage) {
			if err := c.SetAddElements(set, some); err != nil {
				return err
			}
		}
	}
	chains := t.chains()
	for _, name := range slices.Sorted(maps.Keys(chains)) { // all, before the rules that jump to them
		chain := bases[name]
		chain.Name, chain.Table = name, table
		c.AddChain(&chain)
	}
	for name, rules := range chains {
		for _, r := range rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: &nftables.Chain{Name: name, Table: table}, Exprs: r.exprs, UserData: r.comment()})
		}
	}
	return masquerading(c.Flush())
}

// Holds reports whether the table in the kernel is the desired one. The kernel walks a set from its
// start for each part that it answers with, which takes a second for a hundred thousand prefixes,
// so the table is read only if anything of nftables has changed since it was last found as desired.
// It is not safe for concurrent use.
func (t *Translation) Holds() (bool, error) {
	now, err := generation()
	if err != nil {
		return false, fmt.Errorf("read table %q: %w", t.Table, err)
	}
	if t.heldAt == now {
		return true, nil
	}
	t.heldAt = 0
	holds, err := t.compare()
	if holds {
		t.heldAt = now // if it has changed meanwhile, it is read again
	}
	return holds, err
}

// nfgenmsgSize is that of struct nfgenmsg (linux/netfilter/nfnetlink.h), which all messages begin
// with.
const nfgenmsgSize = 4

// generation returns the number of changes of nftables in the network namespace, whatever table
// they were of; it is never 0.
func generation() (uint32, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	answers, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   make([]byte, nfgenmsgSize),
	})
	if err != nil {
		return 0, err
	}
	for _, a := range answers {
		if len(a.Data) < nfgenmsgSize {
			continue
		}
		d, err := netlink.NewAttributeDecoder(a.Data[nfgenmsgSize:])
		if err != nil {
			return 0, err
		}
		d.ByteOrder = binary.BigEndian
		for d.Next() {
			if d.Type() == unix.NFTA_GEN_ID {
				return d.Uint32(), d.Err()
			}
		}
	}
	return 0, errors.New("the kernel does not report the generation of nftables")
}

// compare reads the whole table, and reports whether it is the desired one.
func (t *Translation) compare() (bool, error) {
	c, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("read table %q: %w", t.Table, err)
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("read table %q: %w", t.Table, err)
	}
	desired := t.chains()
	found := 0
	for _, chain := range chains {
		if chain.Table.Name != t.Table {
			continue
		}
		want, ours := desired[chain.Name]
		base, hooks := bases[chain.Name]
		if !ours || hooks != (chain.Hooknum != nil) || hooks && (*chain.Hooknum != *base.Hooknum || chain.Type != base.Type) {
			return false, nil
		}
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			return false, fmt.Errorf("list rules of chain %q: %w", chain.Name, err)
		}
		if !slices.EqualFunc(rules, want, func(r *nftables.Rule, l line) bool {
			text, ok := userdata.GetString(r.UserData, userdata.TypeComment)
			return ok && text == l.text
		}) {
			return false, nil
		}
		found++
	}
	if found != len(desired) {
		return false, nil
	}
	return t.holdsSets(c)
}

// holdsSets reports whether the sets of the table, which exists, are the desired ones.
func (t *Translation) holdsSets(c *nftables.Conn) (bool, error) {
	sets, err := c.GetSets(&nftables.Table{Name: t.Table, Family: nftables.TableFamilyINet})
	if err != nil {
		return false, fmt.Errorf("list sets of table %q: %w", t.Table, err)
	}
	families := t.families()
	if len(sets) != len(families) {
		return false, nil
	}
	for _, f := range families {
		i := slices.IndexFunc(sets, func(s *nftables.Set) bool { return s.Name == f.set })
		if i < 0 {
			return false, nil
		}
		have, err := c.GetSetElements(sets[i])
		if err != nil {
			return false, fmt.Errorf("list elements of set %q: %w", f.set, err)
		}
		want, err := t.elements(f)
		if err != nil {
			return false, fmt.Errorf("read table %q: %w", t.Table, err)
		}
		order := func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) }
		slices.SortFunc(have, order)
		if !slices.EqualFunc(have, want, func(a, b nftables.SetElement) bool {
			return bytes.Equal(a.Key, b.Key) && a.IntervalEnd == b.IntervalEnd
		}) {
			return false, nil
		}
	}
	return true, nil
}

// Exists reports whether there is a table of the family inet.
func Exists(table string) (bool, error) {
	_, t, err := open(table)
	return t != nil, err
}

// Foreign reports whether a table of the family inet has rules that no Translation made: those have
// their text as comment.
func Foreign(table string) (bool, error) {
	c, t, err := open(table)
	if t == nil {
		return false, err
	}
	chains, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return false, fmt.Errorf("list chains of table %q: %w", table, err)
	}
	for _, chain := range chains {
		if chain.Table.Name != table {
			continue
		}
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			return false, fmt.Errorf("list rules of chain %q: %w", chain.Name, err)
		}
		if slices.ContainsFunc(rules, func(r *nftables.Rule) bool {
			_, ok := userdata.GetString(r.UserData, userdata.TypeComment)
			return !ok
		}) {
			return true, nil
		}
	}
	return false, nil
}

// open returns a connection and the table of the family inet; none if there is no such table.
func open(table string) (*nftables.Conn, *nftables.Table, error) {
	c, t, err := find(table)
	if err := absent(err); err != nil {
		return nil, nil, fmt.Errorf("find table %q: %w", table, err)
	}
	return c, t, nil
}

// find is open, but returns an error where the kernel has no nf_tables.
func find(table string) (*nftables.Conn, *nftables.Table, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, nil, err
	}
	all, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, nil, err
	}
	if i := slices.IndexFunc(all, func(t *nftables.Table) bool { return t.Name == table }); i >= 0 {
		return c, all[i], nil
	}
	return nil, nil, nil
}

// absent returns an error, or nil if it is that the kernel has no nf_tables, and therefore no
// table.
func absent(err error) error {
	if _, ok := errors.AsType[*feature.Error](masquerading(err)); ok {
		return nil
	}
	return err
}

// Delete removes a table of the family inet; a missing one is no error.
func Delete(table string) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("delete table %q: %w", table, err)
	}
	c.DelTable(&nftables.Table{Name: table, Family: nftables.TableFamilyINet})
	if err := absent(c.Flush()); err != nil {
		return fmt.Errorf("delete table %q: %w", table, err)
	}
	return nil
}
