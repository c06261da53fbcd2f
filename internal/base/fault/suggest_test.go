package fault

import "testing"

func TestSuggest(t *testing.T) {
	known := []string{"asn", "router_id", "peers", "mtu"}
	for name, want := range map[string]string{
		"router-id": `, did you mean "router_id"?`,
		"peer":      `, did you mean "peers"?`,
		"asm":       `, did you mean "asn"?`,
		"xyz":       "", // as far from mtu as mtu is long
		"":          "",
		"something": "",
	} {
		if got := Suggest(name, known); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}
