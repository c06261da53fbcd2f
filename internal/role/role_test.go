package role

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/kernel/privilege"
)

// TestTable checks that each descriptor is complete and that ports and protocols are unique.
func TestTable(t *testing.T) {
	fields := map[string]int{}
	sections := reflect.TypeFor[Sections]()
	for i := range sections.NumField() {
		key, _, _ := strings.Cut(sections.Field(i).Tag.Get("yaml"), ",")
		fields[key] = i
	}
	ports, protocols := map[uint16]string{}, map[any]string{}
	for _, d := range All() {
		i, ok := fields[d.Name]
		if !ok {
			t.Errorf("%s: Sections has no field of that key", d.Name)
			continue
		}
		delete(fields, d.Name)
		var s Sections
		if d.In(&s) != nil || len(s.Present()) > 0 {
			t.Errorf("%s: has a section where there is none", d.Name)
		}
		reflect.ValueOf(&s).Elem().Field(i).Set(reflect.New(sections.Field(i).Type.Elem()))
		if d.In(&s) == nil || len(s.Present()) != 1 || s.Present()[0].Name != d.Name {
			t.Errorf("%s: is not found in its own section", d.Name)
			continue
		}
		if len(d.In(&s).Check()) == 0 {
			t.Errorf("%s: an empty section passes its check", d.Name)
		}
		for _, f := range s.Check() {
			if !strings.HasPrefix(f.Path, d.Name+".") {
				t.Errorf("%s: fault at %q, outside the section", d.Name, f.Path)
			}
		}
		if text := s.Summary(); !strings.HasPrefix(text, d.Name+": ") {
			t.Errorf("%s: is summarized as %q", d.Name, text)
		}
		d.Host(&s) // an empty section must not cause a panic

		at := netip.MustParseAddrPort("[::1]:7")
		if got := d.DefaultStatus(); got.IsValid() {
			if d.Status(&s) != got {
				t.Errorf("%s: status at %s, want the default %s", d.Name, d.Status(&s), got)
			}
			if first, taken := ports[d.StatusPort]; taken {
				t.Errorf("%s: has the status port of %s", d.Name, first)
			}
			ports[d.StatusPort] = d.Name
			c := Sections{}
			reflect.ValueOf(&c).Elem().Field(i).Set(reflect.ValueOf(d.WithStatus(&s, at)))
			if d.Status(&c) != at || d.Status(&s) == at {
				t.Errorf("%s: WithStatus gives %s and leaves %s", d.Name, d.Status(&c), d.Status(&s))
			}
		}
		if d.Startable() && (d.Short == "" || d.Long == "" || d.StatusPort == 0) {
			t.Errorf("%s: is started, and lacks its help or its status", d.Name)
		}
		if d.Protocol != 0 {
			if first, taken := protocols[d.Protocol]; taken {
				t.Errorf("%s: owns the kernel objects of %s", d.Name, first)
			}
			protocols[d.Protocol] = d.Name
			if !slices.Contains(d.Needs, NetAdmin) && !slices.Contains(d.Some, NetAdmin) {
				t.Errorf("%s: changes the kernel without %s", d.Name, NetAdmin)
			}
		}
		if named, ok := Named(d.Name); !ok || named.Name != d.Name || !slices.Contains(Names(), d.Name) {
			t.Errorf("%s: is not found by its name", d.Name)
		}
		if _, err := d.Reload(nil, &Sections{}); err == nil {
			t.Errorf("%s: reloads without its section", d.Name)
		}
	}
	for key := range fields {
		t.Errorf("section %q has no descriptor", key)
	}
	if _, ok := Named("nobody"); ok {
		t.Error("nobody is a daemon")
	}
}

// TestKept: a gateway that listens at a privileged port opens it again whenever an interface comes
// back.
func TestKept(t *testing.T) {
	d, _ := Named(Gateway)
	for port, want := range map[uint16]bool{0: false, 443: true, 1023: true, 1024: false} {
		kept := d.Kept(&Sections{Gateway: &gateway.Config{Listen: port}})
		if slices.Contains(kept, privilege.BindPort) != want {
			t.Errorf("a gateway at port %d keeps %v", port, kept)
		}
		if slices.Contains(d.Keeps, privilege.BindPort) {
			t.Fatal("the table has changed")
		}
	}
}
