package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// ImportPolicy filters the routes received from a neighbor (RFC 7454, RFC 8212). Routes whose AS
// path contains our AS are always rejected, and so are routes of other ASes for link-local,
// loopback or multicast addresses. The community BLACKHOLE and communities of our AS are removed
// from routes of other ASes, since they have a meaning inside our AS.
type ImportPolicy struct {
	// Reject filters are evaluated in order; the first match determines the reason.
	Reject []PrefixFilter
	// MaxLength rejects IPv6 unicast prefixes that are longer; 0 means no limit.
	MaxLength int
	// EnforceFirstAS rejects routes whose AS path does not begin with the neighbor's AS (RFC
	// 4271 section 6.3). It must be off for route servers (RFC 7947 section 2.2.2).
	EnforceFirstAS bool
	// NextHops, if not empty, rejects next hops outside these prefixes. OwnAddresses rejects
	// next hops that are our own addresses (RFC 4271 section 5.1.3).
	NextHops     []netip.Prefix
	OwnAddresses []netip.Addr
	// RejectVPN rejects every VPN-IPv6 route, for speakers that only originate VPN routes.
	RejectVPN bool
	// WarnPrefixes is the number of accepted IPv6 unicast routes above which a warning is
	// logged, once each time it is exceeded. The session stays up and routes are still
	// accepted, because closing the session with the largest upstream would do more harm. 0
	// means no limit; other values require ReportAdjIn and an external neighbor.
	WarnPrefixes int
}

// PrefixFilter matches the prefixes inside Prefix whose length is from Min to Max.
type PrefixFilter struct {
	Prefix   netip.Prefix
	Min, Max int
	Reason   RejectReason
}

// Within returns filters that match the prefixes and all more specific ones.
func Within(reason RejectReason, prefixes ...netip.Prefix) []PrefixFilter {
	filters := make([]PrefixFilter, len(prefixes))
	for i, p := range prefixes {
		filters[i] = PrefixFilter{Prefix: p, Min: p.Bits(), Max: p.Addr().BitLen(), Reason: reason}
	}
	return filters
}

func (f PrefixFilter) matches(p netip.Prefix) bool {
	return f.Prefix.Contains(p.Addr()) && p.Bits() >= max(f.Min, f.Prefix.Bits()) && p.Bits() <= f.Max
}

func (f PrefixFilter) check() error {
	if err := checkPrefix(f.Prefix); err != nil {
		return fmt.Errorf("rejected prefix %s: %w", f.Prefix, err)
	}
	if f.Min < 0 || f.Min > f.Max || f.Max > f.Prefix.Addr().BitLen() {
		return fmt.Errorf("rejected prefix %s: lengths from %d to %d are impossible", f.Prefix, f.Min, f.Max)
	}
	return nil
}

func (p ImportPolicy) check() error {
	var errs []error
	for _, f := range p.Reject {
		errs = append(errs, f.check())
	}
	for _, n := range p.NextHops {
		if err := checkPrefix(n); err != nil {
			errs = append(errs, fmt.Errorf("next hops %s: %w", n, err))
		}
	}
	if p.MaxLength < 0 || p.MaxLength > 128 {
		errs = append(errs, fmt.Errorf("maximum prefix length must be from 0 to 128, got %d", p.MaxLength))
	}
	if p.WarnPrefixes < 0 {
		errs = append(errs, fmt.Errorf("warn prefixes must be >= 0, got %d", p.WarnPrefixes))
	}
	return errors.Join(errs...)
}

func (p ImportPolicy) clone() ImportPolicy {
	p.Reject, p.NextHops, p.OwnAddresses = slices.Clone(p.Reject), slices.Clone(p.NextHops), slices.Clone(p.OwnAddresses)
	return p
}

func (p ImportPolicy) equal(q ImportPolicy) bool {
	return slices.Equal(p.Reject, q.Reject) && slices.Equal(p.NextHops, q.NextHops) && slices.Equal(p.OwnAddresses, q.OwnAddresses) &&
		p.MaxLength == q.MaxLength && p.EnforceFirstAS == q.EnforceFirstAS && p.RejectVPN == q.RejectVPN && p.WarnPrefixes == q.WarnPrefixes
}

// firstSegment is the first AS number in the AS path of a received route; 0 for an AS_SET or an
// empty path.
type firstSegment uint32

// reject returns why a received IPv6 unicast route is rejected, nil if it is accepted. It must
// match importStatements, which GoBGP evaluates for best path selection.
func (e policyEntry) reject(u Update, first firstSegment) error {
	external := !e.internal()
	if external {
		if inside(martians, u.Prefix) {
			return rejectf(RejectMartian, "%s", u.Prefix)
		}
		if slices.Contains(u.ASPath, e.ownASN) {
			return rejectf(RejectLoop, "own AS %d in the AS path", e.ownASN)
		}
		if e.Import.EnforceFirstAS && uint32(first) != e.ASN {
			return rejectf(RejectFirstAS, "AS path of %s does not begin with %d", u.Prefix, e.ASN)
		}
	}
	for _, f := range e.Import.Reject {
		if f.matches(u.Prefix) {
			return rejectf(f.Reason, "%s", u.Prefix)
		}
	}
	if limit := e.Import.MaxLength; limit > 0 && u.Prefix.Bits() > limit {
		return rejectf(RejectTooLong, "%s is longer than /%d", u.Prefix, limit)
	}
	hop := u.NextHop.WithZone("")
	if slices.Contains(e.Import.OwnAddresses, hop) {
		return rejectf(RejectOwnNextHop, "next hop %s of %s is ours", hop, u.Prefix)
	}
	if in := e.Import.NextHops; len(in) > 0 && !slices.ContainsFunc(in, func(p netip.Prefix) bool { return p.Contains(hop) }) {
		return rejectf(RejectForeignNextHop, "next hop %s of %s is not the neighbor", hop, u.Prefix)
	}
	return nil
}

// admit applies the import policy to a route of the Adj-RIB-In.
func (e policyEntry) admit(u Update, first firstSegment) Update {
	if u.Withdrawn || u.Rejected != nil {
		return u
	}
	if err := e.reject(u, first); err != nil {
		return Update{Neighbor: u.Neighbor, Prefix: u.Prefix, Rejected: err}
	}
	external := !e.internal()
	if external {
		u.LocalPref = 0 // ignored from external peers (RFC 4271 section 5.1.5)
		u.Communities = slices.DeleteFunc(slices.Clone(u.Communities), e.internalSignal)
	}
	switch {
	case external && slices.Contains(u.Communities, GracefulShutdown):
		u.LocalPref = lowestPref
	case e.LocalPref > 0:
		u.LocalPref = e.LocalPref
	}
	return u
}

// internalSignal reports whether a community has a meaning inside our AS and is therefore removed
// from routes of other ASes.
func (e policyEntry) internalSignal(c uint32) bool {
	return c == Blackhole || e.ownASN <= 0xffff && c>>16 == e.ownASN
}

// inside reports whether p equals, or is more specific than, one of others.
func inside(others []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(others, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
}
