package report

import (
	"fmt"
	"image/color"
	"maps"
	"slices"
	"strings"

	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/role"
)

// vertex is a node or, without a title, a switch: a link with more than two ends.
type vertex struct {
	name, title string
	roles       string
	// column is twice the number of links from the server, since a switch is between its nodes.
	column int
	row    float64
	peers  []string
}

// edge is a line between two vertices.
type edge struct {
	from, to string
	// label is the link's name, shape its rate and delay.
	label, shape string
	// limited is whether it limits a transport.
	limited bool
}

// network is a scenario's nodes and links, arranged in columns by their distance from the server.
type network struct {
	vertices map[string]*vertex
	edges    []edge
	columns  [][]*vertex
}

// newNetwork arranges the nodes and links of a scenario.
func newNetwork(spec *scenario.Spec) *network {
	n := &network{vertices: map[string]*vertex{}}
	e := spec.Experiment
	for name, node := range spec.Nodes {
		v := &vertex{name: name, title: name, column: -1}
		var roles []string
		switch name {
		case e.Server:
			roles = append(roles, "server")
		case e.Client:
			roles = append(roles, "client")
		}
		if node != nil {
			for _, d := range role.All() {
				if d.In(&node.Sections) != nil && (d.Name != "serve" || name != e.Server) {
					roles = append(roles, d.Name)
				}
			}
		}
		roles = slices.DeleteFunc(roles, func(r string) bool { return r == name })
		v.roles = strings.Join(roles, ", ")
		n.vertices[name] = v
	}
	limited := map[string]bool{}
	for _, t := range e.Transports {
		for _, l := range t.Links {
			limited[l] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Links)) {
		l := spec.Links[name]
		if l == nil {
			continue
		}
		ends := slices.DeleteFunc(slices.Clone(l.Ends), func(e scenario.End) bool { return n.vertices[e.Node] == nil })
		if len(ends) == 2 {
			n.connect(edge{ends[0].Node, ends[1].Node, clean(name), linkShape(spec, name), limited[name]})
			continue
		}
		hub := "link " + name // no node's name has a space
		n.vertices[hub] = &vertex{name: hub, column: -1}
		for i, end := range ends {
			e := edge{from: end.Node, to: hub, limited: limited[name]}
			if i == 0 {
				e.label, e.shape = clean(name), linkShape(spec, name)
			}
			n.connect(e)
		}
	}
	n.arrange(e.Server)
	return n
}

func (n *network) connect(e edge) {
	n.edges = append(n.edges, e)
	n.vertices[e.from].peers = append(n.vertices[e.from].peers, e.to)
	n.vertices[e.to].peers = append(n.vertices[e.to].peers, e.from)
}

// linkShape returns a link's rate and delay, if these are the same in all cases.
func linkShape(spec *scenario.Spec, name string) string {
	for _, c := range spec.Experiment.Cases {
		if _, ok := c.Links[name]; ok {
			return ""
		}
	}
	var parts []string
	shape := spec.Links[name].Shape
	if shape.Rate > 0 {
		parts = append(parts, shape.Rate.String())
	}
	if shape.Delay > 0 {
		parts = append(parts, shape.Delay.String())
	}
	return strings.Join(parts, ", ")
}

// arrange gives each vertex its column, by distance from the server, and a row near those of its
// neighbors, so that few lines cross (the barycenter method of Sugiyama, Tagawa and Toda, 1981).
func (n *network) arrange(server string) {
	names := slices.Sorted(maps.Keys(n.vertices))
	last := 0
	for _, start := range append([]string{server}, names...) {
		v := n.vertices[start]
		if v == nil || v.column >= 0 {
			continue
		}
		if v.column = 0; start != server {
			v.column = last + 2 // not connected to the server
		}
		for queue := []*vertex{v}; len(queue) > 0; queue = queue[1:] {
			v := queue[0]
			last = max(last, v.column)
			for _, p := range v.peers {
				if peer := n.vertices[p]; peer.column < 0 {
					peer.column = v.column + 2
					if peer.title == "" || v.title == "" {
						peer.column = v.column + 1
					}
					queue = append(queue, peer)
				}
			}
		}
	}
	n.columns = make([][]*vertex, last+1)
	for _, name := range names {
		v := n.vertices[name]
		n.columns[v.column] = append(n.columns[v.column], v)
	}
	place := func(column []*vertex) {
		for i, v := range column {
			v.row = float64(i) - float64(len(column)-1)/2
		}
	}
	for _, c := range n.columns {
		place(c)
	}
	for sweep := range 6 {
		for i := range n.columns {
			if sweep%2 == 1 {
				i = len(n.columns) - 1 - i
			}
			c := n.columns[i]
			center := map[*vertex]float64{}
			for _, v := range c {
				center[v] = v.row
				if len(v.peers) > 0 {
					center[v] = 0
					for _, p := range v.peers {
						center[v] += n.vertices[p].row / float64(len(v.peers))
					}
				}
			}
			slices.SortStableFunc(c, func(a, b *vertex) int {
				switch {
				case center[a] < center[b]:
					return -1
				case center[a] > center[b]:
					return 1
				}
				return 0
			})
			place(c)
		}
	}
}

// topologyFigure draws the scenario's nodes and links.
func topologyFigure(spec *scenario.Spec) (figure, error) {
	n := newNetwork(spec)
	most := 1
	for _, c := range n.columns {
		most = max(most, len(c))
	}
	const pitch, margin = 58, 18
	var words strings.Builder
	words.WriteString("Nodes and links:")
	for i, e := range n.edges {
		if i > 0 {
			words.WriteByte(',')
		}
		fmt.Fprintf(&words, " %s to %s", clean(e.from), clean(e.to))
	}
	f := figure{
		name: "topology", title: "Network", alt: words.String() + ".",
		caption: "Nodes with what runs on them, and links. Blue lines are the links that limit the transports.",
	}
	return render(f, vg.Length(most)*pitch+2*margin, func(c draw.Canvas) {
		step := (c.Max.X - c.Min.X) / vg.Length(max(1, len(n.columns)))
		width := min(110, 2*step*0.54)
		if len(n.columns) > 1 {
			step = (c.Max.X - c.Min.X - width - 2*margin) / vg.Length(len(n.columns)-1)
		}
		at := func(v *vertex) vg.Point {
			return vg.Point{X: c.Min.X + margin + width/2 + vg.Length(v.column)*step, Y: c.Center().Y - vg.Length(v.row)*pitch}
		}
		for _, e := range n.edges {
			s := draw.LineStyle{Color: muted, Width: 1}
			if e.limited {
				s = draw.LineStyle{Color: colorOf(1), Width: 2.2}
			}
			a, b := at(n.vertices[e.from]), at(n.vertices[e.to])
			if n.vertices[e.to].title == "" {
				b.Y = a.Y
			}
			c.StrokeLine2(s, a.X, a.Y, b.X, b.Y)
		}
		label := style(8, muted)
		label.XAlign, label.YAlign = draw.XCenter, draw.YCenter
		for _, e := range n.edges {
			hub := n.vertices[e.to]
			a, b := at(n.vertices[e.from]), at(hub)
			middle := vg.Point{X: (a.X + b.X) / 2, Y: (a.Y + b.Y) / 2}
			if hub.title == "" {
				low, high := n.span(hub, at)
				c.StrokeLine2(draw.LineStyle{Color: muted, Width: 3}, b.X, low-6, b.X, high+6)
				middle = vg.Point{X: b.X, Y: high + 13}
			}
			above, below := middle, middle
			if e.shape != "" {
				above.Y, below.Y = middle.Y+5, middle.Y-5
				block(c, below, label.Width(e.shape)+4, 11, paper)
				c.FillText(label, below, e.shape)
			}
			if e.label != "" {
				block(c, above, label.Width(e.label)+4, 11, paper)
				c.FillText(label, above, e.label)
			}
		}
		name, below := style(9.5, ink), style(7.5, muted)
		for _, t := range []*text.Style{&name, &below} {
			t.XAlign, t.YAlign = draw.XCenter, draw.YCenter
		}
		for _, column := range n.columns {
			for _, v := range column {
				if v.title == "" {
					continue
				}
				p := at(v)
				block(c, p, width+1.5, 34+1.5, muted)
				block(c, p, width, 34, paper)
				if v.roles == "" {
					c.FillText(name, p, shorten(clean(v.title), name, width-6))
					continue
				}
				c.FillText(name, vg.Point{X: p.X, Y: p.Y + 6}, shorten(clean(v.title), name, width-6))
				c.FillText(below, vg.Point{X: p.X, Y: p.Y - 7}, shorten(clean(v.roles), below, width-6))
			}
		}
	})
}

// span returns the vertical extent of a switch.
func (n *network) span(hub *vertex, at func(*vertex) vg.Point) (low, high vg.Length) {
	low, high = at(hub).Y, at(hub).Y
	for _, name := range hub.peers {
		y := at(n.vertices[name]).Y
		low, high = min(low, y), max(high, y)
	}
	return low, high
}

// block fills a rectangle around a point.
func block(c draw.Canvas, at vg.Point, width, height vg.Length, fill color.Color) {
	c.SetColor(fill)
	c.Fill(vg.Rectangle{Min: vg.Point{X: at.X - width/2, Y: at.Y - height/2}, Max: vg.Point{X: at.X + width/2, Y: at.Y + height/2}}.Path())
}
