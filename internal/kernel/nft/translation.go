package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
)

// Translation is a table of its owner's that masquerades packets with some sources.
type Translation struct {
	// Table is its name, in the family inet. Whatever else is in a table of that name is removed.
	Table string
	// Links are the interfaces that the packets leave by, Sources what contains their sources.
	Links   []string
	Sources []netip.Prefix
}

// The chains of a Translation: the base chain has a rule for each interface, which jumps to that
// with a rule for each source.
const (
	linksChain   = "postrouting"
	sourcesChain = "sources"
)

// line is a rule, and its text as nft writes it. The text is also the rule's comment, by which
// rules of the kernel are compared with the desired ones.
type line struct {
	text  string
	exprs []expr.Any
}

func (l line) comment() []byte { return userdata.AppendString(nil, userdata.TypeComment, l.text) }

// links returns the rules of the base chain.
func (t *Translation) links() []line {
	var list []line
	for _, link := range t.Links {
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, link)
		list = append(list, line{fmt.Sprintf("oifname %s jump %s", link, sourcesChain), []expr.Any{
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name},
			&expr.Verdict{Kind: expr.VerdictJump, Chain: sourcesChain},
		}})
	}
	return list
}

// sources returns the rules of the other chain.
func (t *Translation) sources() []line {
	var list []line
	for _, p := range t.Sources {
		// The offset of the source in the header, and its length in bytes.
		family, word, offset, length := byte(unix.NFPROTO_IPV4), "ip", uint32(12), uint32(4)
		if p.Addr().Is6() {
			family, word, offset, length = unix.NFPROTO_IPV6, "ip6", 8, 16
		}
		list = append(list, line{fmt.Sprintf("%s saddr %v masquerade", word, p), []expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: length, Mask: maskOf(p), Xor: make([]byte, length)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
			&expr.Masq{},
		}})
	}
	return list
}

// maskOf returns the mask of a prefix, as long as its address.
func maskOf(p netip.Prefix) []byte {
	mask := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// Set makes the table in the kernel, in place of one of that name, in one step. It returns a
// *feature.Error if the kernel cannot do that.
func (t *Translation) Set() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("make table %q: %w", t.Table, err)
	}
	table := &nftables.Table{Name: t.Table, Family: nftables.TableFamilyINet}
	c.AddTable(table) // so that there is one to delete
	c.DelTable(table)
	c.AddTable(table)
	sources := c.AddChain(&nftables.Chain{Name: sourcesChain, Table: table})
	links := c.AddChain(&nftables.Chain{
		Name: linksChain, Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	for chain, rules := range map[*nftables.Chain][]line{links: t.links(), sources: t.sources()} {
		for _, r := range rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: r.exprs, UserData: r.comment()})
		}
	}
	if err := supported(c.Flush()); err != nil {
		return fmt.Errorf("make table %q: %w", t.Table, err)
	}
	return nil
}

// supported returns an error of the kernel, as a *feature.Error if it has no masquerading.
func supported(err error) error {
	for _, missing := range []error{unix.EOPNOTSUPP, unix.ENOENT, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT} {
		if errors.Is(err, missing) {
			return &feature.Error{Feature: "masquerading by nf_tables", Remedy: "modprobe nft_masq, or use a kernel with CONFIG_NFT_MASQ and CONFIG_NF_TABLES_INET", Err: err}
		}
	}
	return err
}

// Holds reports whether the table in the kernel is the desired one.
func (t *Translation) Holds() (bool, error) {
	c, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("read table %q: %w", t.Table, err)
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("read table %q: %w", t.Table, err)
	}
	desired := map[string][]line{linksChain: t.links(), sourcesChain: t.sources()}
	found := 0
	for _, chain := range chains {
		if chain.Table.Name != t.Table {
			continue
		}
		want, ours := desired[chain.Name]
		hooked := chain.Hooknum != nil && *chain.Hooknum == *nftables.ChainHookPostrouting && chain.Type == nftables.ChainTypeNAT
		if !ours || hooked != (chain.Name == linksChain) {
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
	return found == len(desired), nil
}

// Delete removes a table of the family inet; a missing one is no error.
func Delete(table string) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("delete table %q: %w", table, err)
	}
	c.DelTable(&nftables.Table{Name: table, Family: nftables.TableFamilyINet})
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete table %q: %w", table, err)
	}
	return nil
}
