package bgp

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
)

// TestAdmits: which best paths a neighbor is sent (RFC 1997, RFC 4271 section 9.2, RFC 4456).
func TestAdmits(t *testing.T) {
	own := Options{ASN: 65000, RouterID: addr("10.0.0.9")}
	in := message.NewInterner()
	external := origin{source: 1, peer: rib.Peer{External: true, RouterID: addr("10.0.0.1")}}
	internal := origin{source: 2, peer: rib.Peer{RouterID: addr("10.0.0.2")}}
	client := internal
	client.client = true
	local := origin{source: rib.Local}
	k := message.KeyOf(prefix("2a00:1::/32"))
	plain := message.Fields{}
	with := func(c uint32) message.Fields { return message.Fields{Communities: []uint32{c}} }
	for _, c := range []struct {
		what      string
		to        exporter
		path      message.Fields
		from      origin
		admission bool
	}{
		{"external route to an internal neighbor", exporter{internal: true}, plain, external, true},
		{"internal route to an internal neighbor", exporter{internal: true}, plain, internal, false},
		{"internal route to a client", exporter{internal: true, Neighbor: Neighbor{ReflectorClient: true}}, plain, internal, true},
		{"client's route to an internal neighbor", exporter{internal: true}, plain, client, true},
		{"internal route to an external neighbor", exporter{}, plain, internal, true},
		{"transit", exporter{Neighbor: Neighbor{ExportLocalOnly: true}}, plain, external, false},
		{"own route", exporter{Neighbor: Neighbor{ExportLocalOnly: true}}, plain, local, true},
		{"NO_EXPORT outside", exporter{}, with(message.NoExport), local, false},
		{"NO_EXPORT_SUBCONFED outside", exporter{}, with(message.NoExportSubconfed), local, false},
		{"NO_EXPORT inside", exporter{internal: true}, with(message.NoExport), local, true},
		{"NO_ADVERTISE inside", exporter{internal: true}, with(message.NoAdvertise), local, false},
		{"rejected", exporter{Neighbor: Neighbor{Export: ExportPolicy{Reject: []netip.Prefix{prefix("2a00::/16")}}}}, plain, local, false},
		{"back to its originator", exporter{internal: true, routerID: addr("10.0.0.7"), Neighbor: Neighbor{ReflectorClient: true}},
			message.Fields{OriginatorID: addr("10.0.0.7")}, client, false},
	} {
		x := c.to
		x.own = own
		if !x.routerID.IsValid() {
			x.routerID = addr("10.0.0.3")
		}
		if got := x.admits(k, in.Intern(c.path), c.from); got != c.admission {
			t.Errorf("%s: %t", c.what, got)
		}
	}
}

// TestExportedAttributes: what is changed in the attributes of an advertised route.
func TestExportedAttributes(t *testing.T) {
	in := message.NewInterner()
	service, _, err := message.NewService(sidA, structure, 18)
	if err != nil {
		t.Fatal(err)
	}
	const transitive, nonTransitive = 0x0002_fde8_0000_0065, 0x4002_fde8_0000_0065
	received := message.Fields{
		NextHop: address(1), ASPath: message.MakeASPath(65001), MED: 7, HasMED: true, LocalPref: 200, HasLocalPref: true,
		Communities: []uint32{5}, Extended: []uint64{transitive, nonTransitive}, PrefixSID: service.PrefixSID(),
	}
	neighbor := func(internal bool, change func(*exporter)) *exporter {
		x := &exporter{own: Options{ASN: 65000, RouterID: addr("10.0.0.9")}, internal: internal, self: address(9)}
		if change != nil {
			change(x)
		}
		return x
	}
	external := origin{source: 1, peer: rib.Peer{External: true, RouterID: addr("10.0.0.1")}}
	client := origin{source: 2, peer: rib.Peer{RouterID: addr("10.0.0.2")}, client: true}
	local := origin{source: rib.Local}
	fields := func(x *exporter, f message.Fields, from origin) message.Fields {
		t.Helper()
		out, ok := x.fields(IPv6Unicast, in.Intern(f), from, 0)
		if !ok {
			t.Fatal("not possible")
		}
		return out
	}

	f := fields(neighbor(false, nil), received, external)
	if f.NextHop != address(9) || f.ASPath.String() != "65000 65001" || f.HasMED || f.HasLocalPref || f.PrefixSID != "" ||
		!slices.Equal(f.Extended, []uint64{transitive}) || !slices.Equal(f.Communities, []uint32{5}) {
		t.Errorf("to another AS: %+v", f)
	}
	if f := fields(neighbor(false, nil), received, local); !f.HasMED || f.MED != 7 {
		t.Errorf("own MED to another AS: %+v", f)
	}
	f = fields(neighbor(true, nil), received, external)
	if f.NextHop != address(1) || f.ASPath.String() != "65001" || !f.HasMED || f.LocalPref != 200 || f.PrefixSID == "" || f.OriginatorID.IsValid() {
		t.Errorf("external route inside: %+v", f)
	}
	self := neighbor(true, func(x *exporter) { x.NextHopSelf = true })
	if f := fields(self, received, external); f.NextHop != address(9) {
		t.Errorf("next hop self: %+v", f)
	}
	if f := fields(self, received, client); f.NextHop != address(1) {
		t.Errorf("next hop of a reflected route: %+v", f)
	}
	onLink := received
	onLink.NextHop = addr("fe80::1")
	if f := fields(neighbor(true, nil), onLink, external); f.NextHop != address(9) {
		t.Errorf("link-local next hop alone of another AS: %+v", f)
	}
	onLink = received
	onLink.LinkLocal = addr("fe80::1")
	for _, from := range []origin{client, external} {
		if f := fields(neighbor(true, nil), onLink, from); f.NextHop != address(1) || f.LinkLocal.IsValid() {
			t.Errorf("link-local next hop of a route from elsewhere: %+v", f)
		}
	}

	f = fields(neighbor(true, nil), received, client)
	if f.OriginatorID != addr("10.0.0.2") || !slices.Equal(f.ClusterList, []uint32{0x0a000009}) {
		t.Errorf("reflected: %+v", f)
	}
	again := received
	again.OriginatorID, again.ClusterList = addr("10.0.0.5"), []uint32{1}
	f = fields(neighbor(true, nil), again, client)
	if f.OriginatorID != addr("10.0.0.5") || !slices.Equal(f.ClusterList, []uint32{0x0a000009, 1}) {
		t.Errorf("reflected twice: %+v", f)
	}

	if f := fields(neighbor(true, nil), message.Fields{}, local); f.NextHop != address(9) || f.LocalPref != rib.DefaultLocalPref || !f.HasLocalPref {
		t.Errorf("own route without next hop: %+v", f)
	}
	lost := message.Fields{LocalPref: blackholePref, HasLocalPref: true, Communities: []uint32{Blackhole}}
	if f := fields(neighbor(true, nil), lost, local); f.LocalPref != lowestPref {
		t.Errorf("lost locator: %+v", f)
	}
	leaving := neighbor(true, func(x *exporter) { x.Export.Shutdown = true })
	if f := fields(leaving, received, local); f.LocalPref != lowestPref || !slices.Contains(f.Communities, GracefulShutdown) {
		t.Errorf("graceful shutdown: %+v", f)
	}

	// Our address can be the next hop of an IPv4 route only if the neighbor accepts IPv6 next hops.
	a := in.Intern(received)
	if _, ok := neighbor(false, nil).fields(IPv4Unicast, a, external, 0); ok {
		t.Error("an IPv4 route has an IPv6 next hop that the neighbor does not accept")
	}
	extended := neighbor(false, func(x *exporter) { x.extended = message.Families(IPv4Unicast) })
	if _, ok := extended.fields(IPv4Unicast, a, external, 0); !ok {
		t.Error("an IPv4 route has no IPv6 next hop")
	}
}

// TestLoopsAreRejected: routes that this router has originated or reflected already (RFC 4271
// section 9.1.2, RFC 4456 section 8).
func TestLoopsAreRejected(t *testing.T) {
	in := message.NewInterner()
	m := &importer{own: Options{ASN: 65000, RouterID: addr("10.0.0.9")}, internal: true}
	for what, c := range map[string]struct {
		change func(*message.Fields)
		want   RejectReason
	}{
		"good":              {func(*message.Fields) {}, ""},
		"own as":            {func(f *message.Fields) { f.ASPath = message.MakeASPath(65001, 65000) }, RejectLoop},
		"own originator id": {func(f *message.Fields) { f.OriginatorID = addr("10.0.0.9") }, RejectLoop},
		"own cluster id":    {func(f *message.Fields) { f.ClusterList = []uint32{1, 0x0a000009} }, RejectLoop},
		"no next hop":       {func(f *message.Fields) { f.NextHop = netip.Addr{} }, RejectNextHop},
	} {
		f := message.Fields{NextHop: address(1)}
		c.change(&f)
		err := m.classify(IPv6Unicast, in.Intern(f)).err
		if rejected, ok := err.(*RejectedError); ok != (c.want != "") || ok && rejected.Reason != c.want {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}
