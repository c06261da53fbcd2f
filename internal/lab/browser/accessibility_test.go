package browser

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree has a hidden node with a visible child, a node that is missing, and a cycle.
const tree = `[
	{"nodeId": "1", "ignored": false, "role": {"value": "RootWebArea"}, "name": {"value": "Map"}, "childIds": ["2", "3", "9"], "backendDOMNodeId": 1,
		"properties": [{"name": "focusable", "value": {"value": true}}]},
	{"nodeId": "3", "role": {"value": "button"}, "name": {"value": "Search"}, "backendDOMNodeId": 3,
		"properties": [{"name": "focusable", "value": {"value": true}}, {"name": "invalid", "value": {"value": "false"}}]},
	{"nodeId": "2", "ignored": true, "childIds": ["4", "1"]},
	{"nodeId": "4", "role": {"value": "heading"}, "name": {"value": "Find"}, "backendDOMNodeId": 4}
]`

func decodeTree(b []byte) ([]Element, error) {
	var nodes []accessible
	if err := json.Unmarshal(b, &nodes); err != nil {
		return nil, err
	}
	return elements(nodes)
}

func TestElements(t *testing.T) {
	got, err := decodeTree([]byte(tree))
	want := []Element{{"RootWebArea", "Map", true, 1}, {"heading", "Find", false, 4}, {"button", "Search", true, 3}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	if _, err := decodeTree([]byte("[]")); err == nil {
		t.Error("no tree is accepted")
	}
}

// FuzzElements: whatever the browser sends, each node is there at most once.
func FuzzElements(f *testing.F) {
	f.Add([]byte(tree))
	f.Fuzz(func(t *testing.T, b []byte) {
		var nodes []accessible
		if json.Unmarshal(b, &nodes) != nil {
			return
		}
		if all, err := elements(nodes); err == nil && len(all) > len(nodes) {
			t.Errorf("%d elements of %d nodes", len(all), len(nodes))
		}
	})
}
