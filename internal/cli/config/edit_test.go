package config

import (
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// TestPutItem: an item is added to a list or replaces one, the rest stays with its comments, and a
// form of the list that is not understood is an error.
func TestPutItem(t *testing.T) {
	type item struct {
		Name     string   `yaml:"name"`
		Prefixes []string `yaml:"prefixes"`
	}
	type file struct {
		Gateway struct {
			Key        string
			Peers      []item
			Masquerade bool
		}
	}
	add := item{"b", []string{"10.0.0.0/8", "::/0"}}
	for name, text := range map[string]string{
		"block":    "# head\ngateway:\n  key: gw.key # here\n  peers:\n    - name: a\n      # why\n      prefixes: [10.1.0.0/16]\n  masquerade: true\n# end\n",
		"flat":     "gateway:\n  peers:\n  - name: a # why\n    prefixes:\n    - 10.1.0.0/16\n  # here\n  masquerade: true\n# head\n# end\n",
		"flow":     "gateway:\n  # head\n  peers: # here\n    - {name: a, prefixes: [10.1.0.0/16]} # why\n  masquerade: true # end\n",
		"all flow": "gateway: {peers: [{name: a, prefixes: [10.1.0.0/16]}], masquerade: true}\n",
	} {
		for index := range 2 {
			got, err := PutItem([]byte(text), "gateway.peers", index, add)
			if name == "all flow" {
				if err == nil {
					t.Errorf("%s: %s", name, got)
				}
				continue
			}
			var want, have file
			if e := yaml.Unmarshal([]byte(text), &want); err != nil || e != nil {
				t.Fatalf("%s: %v, %v", name, err, e)
			}
			want.Gateway.Peers = append(want.Gateway.Peers[:index], add)
			if err := yaml.Unmarshal(got, &have); err != nil || !reflect.DeepEqual(have, want) {
				t.Errorf("%s, %d: %v, %+v\n%s", name, index, err, have, got)
			}
			for _, comment := range []string{"# head", "# here", "# end", "# why"} {
				if !strings.Contains(string(got), comment) && (comment != "# why" || index == 1) {
					t.Errorf("%s, %d lacks %s:\n%s", name, index, comment, got)
				}
			}
		}
	}
	for _, text := range []string{"", "a: [", "gateway: {}\n", "gateway: {peers: 3}\n", "gateway:\n  peers: &x [*x]\n"} {
		if got, err := PutItem([]byte(text), "gateway.peers", 0, add); err == nil {
			t.Errorf("%q: %s", text, got)
		}
	}
}
