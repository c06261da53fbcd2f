package message

import (
	_ "embed"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/bgp/vpn"
)

// optional is what an accessor that also returns whether the attribute is present returns.
type optional struct {
	value   uint32
	present bool
}

// accessors has each method of Attributes without arguments, and what it must return for Fields.
// The results are those of reflect, without empty slices.
var accessors = map[string]func(f Fields) any{
	"NextHop":      func(f Fields) any { return f.NextHop },
	"LinkLocal":    func(f Fields) any { return f.LinkLocal },
	"Origin":       func(f Fields) any { return f.Origin },
	"ASPath":       func(f Fields) any { return f.ASPath },
	"PathLen":      func(f Fields) any { return f.ASPath.Len() },
	"FirstAS":      func(f Fields) any { return f.ASPath.First() },
	"MED":          func(f Fields) any { return optional{f.MED, f.HasMED} },
	"LocalPref":    func(f Fields) any { return optional{f.LocalPref, f.HasLocalPref} },
	"Communities":  func(f Fields) any { return Uint32s(appendUint32s(nil, f.Communities...)) },
	"OriginatorID": func(f Fields) any { return f.OriginatorID },
	"Large":        func(f Fields) any { return f.Large },
	"ClusterList":  func(f Fields) any { return Uint32s(appendUint32s(nil, f.ClusterList...)) },
	"Targets": func(f Fields) any {
		var targets []vpn.ID
		for _, c := range f.Extended {
			if id, ok := vpn.FromTarget(c); ok && !slices.Contains(targets, id) {
				targets = append(targets, id)
			}
		}
		return targets
	},
	"Service": func(f Fields) any {
		if f.PrefixSID == "" {
			return noService
		}
		s, err := parsePrefixSID([]byte(f.PrefixSID))
		if err != nil {
			return noService
		}
		return &s
	},
	"OnlyToCustomer": func(f Fields) any { return optional{f.OnlyToCustomer, f.HasOnlyToCustomer} },
	"Size":           func(f Fields) any { return len(f.append(nil)) },
	"Fields":         func(f Fields) any { return f },
}

// checkAccessors calls every method of the attributes without arguments, and compares it with the
// fields. A method that accessors does not have is a failure.
func checkAccessors(t testing.TB, a *Attributes) {
	t.Helper()
	f, v := a.Fields(), reflect.ValueOf(a)
	for i := range v.NumMethod() {
		name := v.Type().Method(i).Name
		expected, known := accessors[name]
		if !known {
			t.Fatalf("accessors does not have Attributes.%s", name)
		}
		var got any
		switch results := v.Method(i).Call(nil); len(results) {
		case 1:
			got = results[0].Interface()
		case 2:
			got = optional{uint32(results[0].Uint()), results[1].Bool()}
		}
		if want := expected(f); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, %v in the fields %+v", name, got, want, f)
		}
	}
}

// without returns the fields without the attributes whose bits are not in the mask, in the order of
// this function.
func without(f Fields, mask uint) Fields {
	g := Fields{NextHop: f.NextHop, Origin: f.Origin}
	for bit, set := range []func(){
		func() { g.ASPath = f.ASPath },
		func() { g.MED, g.HasMED = f.MED, true },
		func() { g.LocalPref, g.HasLocalPref = f.LocalPref, true },
		func() { g.AtomicAggregate = true },
		func() { g.Aggregator = f.Aggregator },
		func() { g.Communities = f.Communities },
		func() { g.OriginatorID = f.OriginatorID },
		func() { g.ClusterList = f.ClusterList },
		func() { g.Extended = f.Extended },
		func() { g.Large = f.Large },
		func() { g.PrefixSID = f.PrefixSID },
		func() { g.LinkLocal = f.LinkLocal },
		func() { g.OnlyToCustomer, g.HasOnlyToCustomer = 65001, true },
	} {
		if mask>>bit&1 == 1 {
			set()
		}
	}
	return g
}

// unknownAttribute returns an attribute of a type that this package does not know, on the wire.
func unknownAttribute(kind uint8, value []byte) string {
	return string(appendAttributeHeader(nil, flagOptional|flagTransitive|flagPartial, kind, len(value))) + string(value)
}

// TestAbsentAttributes: each set of present attributes, followed by each unknown one, reads the
// same by accessors and by Fields.
func TestAbsentAttributes(t *testing.T) {
	full := fullFields(t)
	r := rand.New(rand.NewPCG(21, 22))
	in := NewInterner()
	for mask := range uint(1 << 13) {
		f := without(full, mask)
		checkAccessors(t, in.Intern(f))
		kind := uint8(r.UintN(256))
		for attributes[kind].name != "" {
			kind++
		}
		f.UnknownTransitive = unknownAttribute(kind, []byte("twelve bytes"[:r.IntN(13)]))
		a := in.Intern(f)
		checkAccessors(t, a)
		if got := a.Fields(); !reflect.DeepEqual(got, f) {
			t.Errorf("%+v\nbecame %+v", f, got)
		}
		if t.Failed() {
			t.Fatalf("attributes %012b, unknown %d", mask, kind)
		}
	}
}

//go:embed testdata/absent.txt
var absent string

// TestAbsentAttributesOfMessages: the attribute of the next higher type is not taken for an absent
// one.
func TestAbsentAttributesOfMessages(t *testing.T) {
	for line := range strings.Lines(absent) {
		name, text, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || name == "#" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			b, err := hex.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			var u Update
			if err := NewDecoder(everything, false, NewInterner()).Update(b[HeaderLen:], &u); err != nil || len(u.Announced) != 1 || len(u.Faults) > 0 {
				t.Fatalf("%+v, %v", u, err)
			}
			a := u.Announced[0].Attributes
			checkAccessors(t, a)
			if a.Communities() != "" || a.ClusterList() != "" || a.OriginatorID() != (netip.Addr{}) {
				t.Errorf("communities %v, cluster list %v, originator %s", a.Communities().Slice(), a.ClusterList().Slice(), a.OriginatorID())
			}
			if large := len(a.Large()); large > 0 != strings.HasPrefix(name, "large-") {
				t.Errorf("%d large communities", large)
			}
		})
	}
}
