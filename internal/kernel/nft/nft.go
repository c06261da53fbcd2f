// Package nft translates source addresses with the kernel's nf_tables, as a home router does.
//
// It works in the network namespace of the calling thread. It filters nothing. Of
// the rulesets of others it finds the chains that may drop what is forwarded.
package nft

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
)

// table is the name of the table that Masquerade makes.
const table = "tabane"

// Masquerade makes packets that are forwarded out of an interface leave with its address as source,
// in IPv4 and IPv6, and answers to them return: the rule "oifname LINK masquerade" at the hook
// postrouting. It returns a *feature.Error if the kernel cannot do that. A second call for the same
// namespace adds a rule.
func Masquerade(link string) error {
	if err := checkInterface(link); err != nil {
		return fmt.Errorf("masquerade packets out of interface %q: %w", link, err)
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("masquerade packets out of interface %q: %w", link, err)
	}
	t := c.AddTable(&nftables.Table{Name: table, Family: nftables.TableFamilyINet})
	chain := c.AddChain(&nftables.Chain{
		Name: "postrouting", Table: t, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceName(link)},
		&expr.Masq{},
	}})
	if err := masquerading(c.Flush()); err != nil {
		return fmt.Errorf("masquerade packets out of interface %q: %w", link, err)
	}
	return nil
}

// checkInterface returns an error for what cannot be the name of an interface.
func checkInterface(name string) error {
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return fmt.Errorf("an interface has a name of 1 to %d bytes", unix.IFNAMSIZ-1)
	}
	return nil
}

// interfaceName returns the name of an interface as the kernel compares it.
func interfaceName(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}

// masquerading returns an error of the kernel, as a *feature.Error if it cannot masquerade.
func masquerading(err error) error {
	return supported(err, "masquerading by nf_tables", "modprobe nft_masq, or use a kernel with CONFIG_NFT_MASQ and CONFIG_NF_TABLES_INET")
}

// supported returns an error of the kernel, as a *feature.Error with the remedy if it is that the
// kernel lacks a feature.
func supported(err error, name, remedy string) error {
	for _, missing := range []error{unix.EOPNOTSUPP, unix.ENOENT, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT} {
		if errors.Is(err, missing) {
			return &feature.Error{Feature: name, Remedy: remedy, Err: err}
		}
	}
	return err
}
