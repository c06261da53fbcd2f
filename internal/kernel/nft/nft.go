// Package nft translates source addresses with the kernel's nf_tables, as a home router does.
//
// It works in the network namespace of the calling thread. It filters nothing. Of
// the rulesets of others it finds the chains that may drop what is forwarded.
package nft

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// table is the name of the table that Masquerade makes.
const table = "tabane"

// Masquerade makes packets that are forwarded out of an interface leave with its address as source, in
// IPv4 and IPv6, and answers to them return: the rule "oifname LINK masquerade" at the hook
// postrouting. It returns a *feature.Error if the kernel cannot do that. A second call for the
// same namespace adds a rule.
func Masquerade(link string) error {
	if link == "" || len(link) >= unix.IFNAMSIZ {
		return fmt.Errorf("masquerade packets out of interface %q: an interface has a name of 1 to %d bytes", link, unix.IFNAMSIZ-1)
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
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, link)
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name},
		&expr.Masq{},
	}})
	err = supported(c.Flush())
	if err != nil {
		return fmt.Errorf("masquerade packets out of interface %q: %w", link, err)
	}
	return nil
}
