package browser

import (
	"context"
	"fmt"
)

// Element is an element of a page as assistive technology sees it.
type Element struct {
	// Role and Name are those of WAI-ARIA, such as button and "Zoom in".
	Role, Name string
	// Focusable is whether the element can have the focus.
	Focusable bool
	// ID identifies the element in the document.
	ID int64
}

// maxElements bounds the elements of a page.
const maxElements = 20000

// accessible is a node of the browser's accessibility tree.
type accessible struct {
	ID       string   `json:"nodeId"`
	Ignored  bool     `json:"ignored"`
	Role     axValue  `json:"role"`
	Name     axValue  `json:"name"`
	Children []string `json:"childIds"`
	Element  int64    `json:"backendDOMNodeId"`
	Has      []struct {
		Name  string  `json:"name"`
		Value axValue `json:"value"`
	} `json:"properties"`
}

type axValue struct {
	Value any `json:"value"`
}

func (v axValue) text() string {
	s, _ := v.Value.(string)
	return s
}

// Elements returns the elements of the page's accessibility tree in their order, without those that
// it hides from assistive technology.
func (p *Page) Elements(ctx context.Context) ([]Element, error) {
	var tree struct {
		Nodes []accessible `json:"nodes"`
	}
	if err := p.call(ctx, "Accessibility.getFullAXTree", nil, &tree); err != nil {
		return nil, fmt.Errorf("read accessibility tree: %w", err)
	}
	all, err := elements(tree.Nodes)
	if err != nil {
		return nil, fmt.Errorf("read accessibility tree: %w", err)
	}
	return all, nil
}

// elements returns the elements of a tree, whose root is its first node, in depth-first order.
func elements(nodes []accessible) (all []Element, _ error) {
	if len(nodes) == 0 || len(nodes) > maxElements {
		return nil, fmt.Errorf("it has %d nodes, not 1 to %d", len(nodes), maxElements)
	}
	byID := map[string]*accessible{}
	for i := range nodes {
		byID[nodes[i].ID] = &nodes[i]
	}
	seen := map[string]bool{}
	next := []string{nodes[0].ID}
	for len(next) > 0 {
		id := next[len(next)-1]
		next = next[:len(next)-1]
		n := byID[id]
		if n == nil || seen[id] {
			continue
		}
		seen[id] = true
		for i := len(n.Children) - 1; i >= 0; i-- {
			next = append(next, n.Children[i])
		}
		if n.Ignored {
			continue
		}
		e := Element{Role: n.Role.text(), Name: n.Name.text(), ID: n.Element}
		for _, has := range n.Has {
			if has.Name == "focusable" {
				e.Focusable = has.Value.Value == true
			}
		}
		all = append(all, e)
	}
	return all, nil
}

// Focused returns the ID of the element that has the focus.
func (p *Page) Focused(ctx context.Context) (int64, error) {
	var active struct {
		Result struct {
			Object string `json:"objectId"`
		} `json:"result"`
	}
	var described struct {
		Node struct {
			ID int64 `json:"backendNodeId"`
		} `json:"node"`
	}
	err := p.call(ctx, "Runtime.evaluate", map[string]any{"expression": "document.activeElement"}, &active)
	if err == nil {
		err = p.call(ctx, "DOM.describeNode", map[string]any{"objectId": active.Result.Object}, &described)
	}
	if err != nil {
		return 0, fmt.Errorf("find the element with the focus: %w", err)
	}
	return described.Node.ID, nil
}
