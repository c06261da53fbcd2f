package nft

import (
	"bytes"
	"encoding/binary"
	"net"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// Packets are those that Untracked is about.
type Packets struct {
	// Mark is their mark in Bits.
	Mark, Bits uint32
	// Lines are the interfaces that they arrive at.
	Lines []string
}

// examine reports whether a rule may match the packets, and whether it then replaces their mark.
// What is not known of a condition is taken to be true.
func (r *ruleset) examine(rule []expr.Any) (matches, remarks bool) {
	var loaded *expr.Meta // what the next expression uses
	var bits *expr.Bitwise
	for _, e := range rule {
		switch e := e.(type) {
		case *expr.Meta:
			if !e.SourceRegister {
				loaded, bits = e, nil
				continue
			}
			remarks = remarks || e.Key == expr.MetaKeyMARK && !r.keeps(loaded, bits)
		case *expr.Bitwise:
			bits = e
			continue
		case *expr.Cmp:
			if loaded != nil && !r.mayMatch(loaded.Key, bits, e) {
				return false, false
			}
		case *expr.Target:
			if info, ok := e.Info.(*xt.Unknown); ok {
				remarks = remarks || targetRemarks(e.Name, uint8(e.Rev), *info, r.Bits)
			}
		}
		loaded, bits = nil, nil
	}
	return true, remarks
}

// keeps reports whether a mark that is set is the one before, but for other bits.
func (r *ruleset) keeps(loaded *expr.Meta, bits *expr.Bitwise) bool {
	if loaded == nil || loaded.Key != expr.MetaKeyMARK || bits == nil {
		return false
	}
	mask, xor, ok := ofMark(bits)
	return ok && mask&r.Bits == r.Bits && xor&r.Bits == 0
}

// ofMark returns the operands of an expression on a mark: its bits in mask are kept, and then those
// in xor inverted. It returns false for one on something of another length.
func ofMark(e *expr.Bitwise) (mask, xor uint32, ok bool) {
	if len(e.Mask) != 4 || len(e.Xor) != 4 {
		return 0, 0, false
	}
	n := binaryutil.NativeEndian
	return n.Uint32(e.Mask), n.Uint32(e.Xor), true
}

// mayMatch reports whether a comparison may be true for the packets.
func (r *ruleset) mayMatch(key expr.MetaKey, bits *expr.Bitwise, c *expr.Cmp) bool {
	var values [][]byte
	switch n := binaryutil.NativeEndian; key {
	case expr.MetaKeyMARK:
		mark := r.Mark
		if bits != nil {
			if mask, xor, ok := ofMark(bits); ok {
				mark = mark&mask ^ xor
			}
		}
		values = append(values, n.PutUint32(mark))
	case expr.MetaKeyIIFNAME:
		values = names(r.Lines, len(c.Data))
	case expr.MetaKeyIIF:
		values = indices(r.Lines)
	default:
		return true
	}
	for _, v := range values {
		// The name of an interface may be compared as far as its beginning.
		if equal := bytes.HasPrefix(v, c.Data); equal == (c.Op == expr.CmpOpEq) || c.Op != expr.CmpOpEq && c.Op != expr.CmpOpNeq {
			return true
		}
	}
	return false
}

// names returns names of interfaces as they are compared, with zeros up to a length.
func names(links []string, length int) (values [][]byte) {
	for _, link := range links {
		values = append(values, append([]byte(link), make([]byte, unix.IFNAMSIZ)...)[:max(length, len(link))])
	}
	return values
}

// indices returns the numbers of the interfaces that exist, as they are compared.
func indices(links []string) (values [][]byte) {
	for _, link := range links {
		if i, err := net.InterfaceByName(link); err == nil {
			values = append(values, binaryutil.NativeEndian.PutUint32(uint32(i.Index)))
		}
	}
	return values
}

// targetRemarks reports whether a target of iptables, in one of its revisions, replaces bits of the
// mark.
func targetRemarks(name string, revision uint8, info []byte, bits uint32) bool {
	const restore = 2
	mode := 12
	if revision > 1 {
		mode = 14
	}
	switch {
	// struct xt_mark_tginfo2: the mark, and the bits that are replaced.
	case name == "MARK" && len(info) >= 8:
		return binary.NativeEndian.Uint32(info[4:])&bits != 0
	// struct xt_connmark_tginfo1: ctmark, ctmask, nfmask, mode; from 2 on, a shift before mode.
	case name == "CONNMARK" && len(info) > mode:
		return info[mode] == restore && binary.NativeEndian.Uint32(info[8:])&bits != 0
	}
	return false
}
