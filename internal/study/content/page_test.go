package content

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

// TestEqualSeedsAreEqual: worlds and tasks are functions of their seeds, and differ with them.
func TestEqualSeedsAreEqual(t *testing.T) {
	a, b, other := New(1), New(1), New(2)
	if !reflect.DeepEqual(a, b) {
		t.Error("two worlds of a seed differ")
	}
	if reflect.DeepEqual(a.places, other.places) || reflect.DeepEqual(a.items, other.items) {
		t.Error("the worlds of two seeds are equal")
	}
	for _, s := range Services() {
		if !reflect.DeepEqual(a.Task(s, false, 7), b.Task(s, false, 7)) {
			t.Errorf("%s: two tasks of a seed differ", s)
		}
		if reflect.DeepEqual(a.Task(s, false, 7), a.Task(s, false, 8)) {
			t.Errorf("%s: the tasks of two seeds are equal", s)
		}
		text, err := json.Marshal(a.Task(s, true, 7))
		var back Task
		if err := errors.Join(err, json.Unmarshal(text, &back)); err != nil || !reflect.DeepEqual(back, a.Task(s, true, 7)) {
			t.Errorf("%s: a task is not the same after JSON: %v", s, err)
		}
	}
}

// TestWorld checks what tasks rely on.
func TestWorld(t *testing.T) {
	w := New(3)
	if len(w.places) != 160 || len(w.items) != 240 {
		t.Fatalf("%d places and %d items, want 160 and 240", len(w.places), len(w.items))
	}
	names := map[string]bool{}
	for i, p := range w.places {
		if names[p.Kind+p.Name] || len(p.Features) < 2 {
			t.Errorf("place %+v: has the name of another, or no features", p)
		}
		names[p.Kind+p.Name] = true
		for _, o := range w.places[:i] {
			if dx, dy := p.X-o.X, p.Y-o.Y; dx*dx+dy*dy < 40*40 {
				t.Errorf("places %s and %s are at the same position", p.ID, o.ID)
			}
			if o.District == p.District && o.Kind == p.Kind && slices.Equal(o.Features, p.Features) {
				t.Errorf("places %s and %s are indistinguishable", p.ID, o.ID)
			}
		}
		if found, ok := w.place(p.ID); !ok || found.ID != p.ID {
			t.Errorf("place %s is not found", p.ID)
		}
	}
	for _, i := range w.items {
		if found, ok := w.item(i.ID); !ok || found.Name != i.Name || i.Price <= 0 || i.Price > priceLimits[len(priceLimits)-1] {
			t.Errorf("item %+v: is not found, or has no price", i)
		}
	}
	if _, ok := w.item("p1"); ok {
		t.Error("a place is an item")
	}
	if _, ok := w.place("i1"); ok {
		t.Error("an item is a place")
	}
}

// TestTasks: the goal of each task meets its conditions, the player's steps reach it, and every
// view is within the bounds that the package promises.
func TestTasks(t *testing.T) {
	w := New(1)
	for _, s := range Services() {
		for _, heavy := range []bool{false, true} {
			lowest, highest := int64(500_000), int64(2_000_000)
			if heavy {
				lowest, highest = 5_000_000, 10_000_000
			}
			var firstRequests, firstBytes, stepRequests, stepBytes, pages, bytes []int64
			for seed := range uint64(200) {
				task := w.Task(s, heavy, seed)
				at := fmt.Sprintf("%s, heavy %t, seed %d", s, heavy, seed)
				if n := w.Met(task, task.Goal); n != 3 {
					t.Errorf("%s: the goal meets %d conditions", at, n)
				}
				if n := w.Met(task, "p0"); n != 0 {
					t.Errorf("%s: an unknown place meets %d conditions", at, n)
				}
				first := task.Loads[0]
				if n := len(first.Requests); n < 20 || n > 60 {
					t.Errorf("%s: %d requests for the first view", at, n)
				}
				if n := first.Bytes(); n < lowest || n > highest {
					t.Errorf("%s: %d bytes for the first view", at, n)
				}
				loads := 1
				for i, step := range task.Steps {
					if !step.Loads {
						continue
					}
					if n := len(task.Loads[loads].Requests); n < 5 || n > 20 {
						t.Errorf("%s: %d requests for step %d (%s)", at, n, i, step.Selector)
					}
					loads++
				}
				if loads != len(task.Loads) {
					t.Errorf("%s: %d loads for %d steps that load", at, len(task.Loads), loads-1)
				}
				total := int64(0)
				for i, l := range task.Loads {
					total += l.Bytes()
					if i == 0 {
						firstRequests, firstBytes = append(firstRequests, int64(len(l.Requests))), append(firstBytes, l.Bytes())
					} else {
						stepRequests, stepBytes = append(stepRequests, int64(len(l.Requests))), append(stepBytes, l.Bytes())
					}
				}
				pages, bytes = append(pages, int64(len(task.Loads)-1)), append(bytes, total)
				last, before := task.Steps[len(task.Steps)-1], task.Steps[len(task.Steps)-2]
				if want := map[Service]string{Map: "#choose", Shop: "#add"}[s]; last.Selector != want || !strings.Contains(before.Selector, `"`+task.Goal+`"`) {
					t.Errorf("%s: the steps end with %s and %s, not with the goal %s", at, before.Selector, last.Selector, task.Goal)
				}
			}
			// docs/site.md has these.
			t.Logf("%s, heavy %t: first view %s requests, %s bytes; step %s requests, %s bytes; %s steps, %s bytes in all", s, heavy,
				spread(firstRequests), spread(firstBytes), spread(stepRequests), spread(stepBytes), spread(pages), spread(bytes))
		}
	}
}

// TestLanguages: each text is in both languages and takes the same values in each, every value of
// the world has one, and tasks differ by what a player types only.
func TestLanguages(t *testing.T) {
	values := regexp.MustCompile(`{\w+}|%s`)
	for _, table := range []map[string]text{texts, conditions} {
		for key, one := range table {
			en, ja := values.FindAllString(one.en, -1), values.FindAllString(one.ja, -1)
			slices.Sort(en)
			slices.Sort(ja)
			if one.en == "" || one.ja == "" || !slices.Equal(en, ja) {
				t.Errorf("%s: %q and %q", key, one.en, one.ja)
			}
		}
	}
	w := New(1)
	for _, value := range slices.Concat(placeKinds, placeFeatures, districtNames, categories, colors) {
		if _, ok := texts[value]; !ok {
			t.Errorf("%q has no text", value)
		}
	}
	for _, s := range Services() {
		for seed := range uint64(100) {
			en, ja := w.Task(s, false, seed), w.In(Japanese).Task(s, false, seed)
			if en.Goal != ja.Goal || len(en.Steps) != len(ja.Steps) || en.Conditions == ja.Conditions || w.Met(ja, ja.Goal) != 3 {
				t.Errorf("%s, seed %d: %+v and %+v", s, seed, en, ja)
			}
			for i := range en.Steps {
				one, other := en.Steps[i], ja.Steps[i]
				if one.Action == Type {
					one.Text, other.Text = "", ""
				}
				if one != other || len(en.Loads) != len(ja.Loads) {
					t.Errorf("%s, seed %d, step %d: %+v and %+v", s, seed, i, en.Steps[i], ja.Steps[i])
				}
			}
		}
		doc, err := w.In(Japanese).Resource(Path(s, false), "")
		if err != nil || !doc.Localized || !strings.Contains(string(doc.Body()), `<html lang="ja">`) || strings.Contains(string(doc.Body()), "no value") {
			t.Errorf("%s: %v\n%.1000s", s, err, doc.Body())
		}
	}
	for value, want := range map[string]string{"500": "価格：500 円以下", "20000": "価格：20,000 円以下", "1234567": "価格：1,234,567 円以下"} {
		if got := Japanese.Condition("price", value); got != want {
			t.Errorf("condition %q, want %q", got, want)
		}
	}
	for header, want := range map[string]Language{
		"": English, "ja": Japanese, "ja-JP,ja;q=0.9,en;q=0.8": Japanese, "en-US,en;q=0.9,ja;q=0.8": English, "de, ja;q=0.5": Japanese, "de": English,
		"en;q=0.1, JA;q=0.2": Japanese, "ja;q=0": English, "ja;q=x, en": English, "ja;q=NaN": English, strings.Repeat(",", 5000) + "ja": English,
	} {
		if got := Preferred(header); got != want {
			t.Errorf("%.40q: got %s, want %s", header, got, want)
		}
	}
}

// spread returns the lowest, the median and the highest of values.
func spread(values []int64) string {
	slices.Sort(values)
	return fmt.Sprintf("%d, %d, %d", values[0], values[len(values)/2], values[len(values)-1])
}

// TestChoiceIsJudged: conditions are counted one by one.
func TestChoiceIsJudged(t *testing.T) {
	w := New(1)
	task := w.Task(Map, false, 1)
	met := map[int]int{}
	for _, p := range w.places {
		met[w.Met(task, p.ID)]++
	}
	if met[3] != 1 || met[2] == 0 || met[1] == 0 || met[0] == 0 {
		t.Errorf("places by conditions met: %v, want exactly one with all three and some with less", met)
	}
	task = w.Task(Shop, false, 1)
	met = map[int]int{}
	for _, i := range w.items {
		met[w.Met(task, i.ID)]++
	}
	if met[3] == 0 || met[3] > itemsPerColor || met[2] == 0 || met[1] == 0 {
		t.Errorf("items by conditions met: %v", met)
	}
}

// TestSizes: a resource has the size that it says, and an image is a PNG of its dimensions that
// another decoder reads.
func TestSizes(t *testing.T) {
	w := New(1)
	for _, heavy := range []bool{false, true} {
		checked := map[string]bool{}
		for _, s := range Services() {
			for _, load := range w.Task(s, heavy, 4).Loads {
				for _, r := range load.Requests {
					path, query, _ := strings.Cut(r.URI, "?")
					got, err := w.Resource(path, query)
					if err != nil {
						t.Fatalf("%s: %v", r.URI, err)
					}
					kind := strings.Map(func(r rune) rune {
						if r >= '0' && r <= '9' {
							return -1
						}
						return r
					}, path) // one image of each kind is enough
					if got.Type == "image/png" && checked[kind] {
						continue
					}
					checked[kind] = true
					body := got.Body()
					if len(body) != r.Bytes || len(body) != got.Size {
						t.Errorf("%s: %d bytes, want %d", r.URI, len(body), r.Bytes)
					}
					if got.Type == "image/png" {
						if _, err := png.Decode(bytes.NewReader(body)); err != nil {
							t.Errorf("%s: %v", r.URI, err)
						}
					}
				}
			}
		}
	}
}

// TestDrawing: neighboring tiles continue each other, and a tile has more than one land use.
func TestDrawing(t *testing.T) {
	w := New(1)
	p := dimensions("tile", false)
	left, err := w.tile(View{3, 9, 9}, p, 1)
	if err != nil {
		t.Fatal(err)
	}
	wide := picture{2 * TileSize, TileSize, 4}
	both := w.landscape(wide, 9*TileSize*mapUnit, 9*TileSize*mapUnit, mapUnit*256)
	a, errA := png.Decode(bytes.NewReader(left.Body()))
	b, errB := png.Decode(bytes.NewReader(both))
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	seen := map[any]bool{}
	for y := range TileSize {
		for x := range TileSize {
			if a.At(x, y) != b.At(x, y) {
				t.Fatalf("pixel %d,%d differs", x, y)
			}
			seen[a.At(x, y)] = true
		}
	}
	if len(seen) < 3 {
		t.Errorf("%d land uses in a tile", len(seen))
	}
}

// TestIcons: each kind has its figure in the image of all icons, where the style sheet says.
func TestIcons(t *testing.T) {
	style, err := static.ReadFile("static/style.css")
	if err != nil {
		t.Fatal(err)
	}
	for s, kinds := range map[Service][]string{Map: placeKinds, Shop: categories} {
		for _, heavy := range []bool{false, true} {
			r, err := New(1).Resource(Path(s, heavy)+"icons.png", "")
			if err != nil {
				t.Fatal(err)
			}
			decoded, err := png.Decode(bytes.NewReader(r.Body()))
			if err != nil {
				t.Fatal(err)
			}
			icons, side := decoded.(*image.Paletted), dimensions("icon", heavy).width
			if got := icons.Bounds().Max; got != (image.Point{side * len(kinds), side}) {
				t.Fatalf("%s, heavy %t: the icons are %v", s, heavy, got)
			}
			for i, kind := range kinds {
				for y := range side {
					for x := range side {
						painted := icons.ColorIndexAt(side*i+x, y) >= 128
						u := (side*i + x - side*len(kinds)/2) * 1000 / side // rounded to the center of the image
						if painted != figures[kind](u+500*len(kinds)-1000*i-500, (y-side/2)*1000/side) {
							t.Fatalf("%s, heavy %t: %s has another figure at %d,%d", s, heavy, kind, x, y)
						}
					}
				}
				rule := fmt.Sprintf(".icon.%s { object-position: calc(100%% * %d / %d) 0; }\n", kind, i, len(kinds)-1)
				if i > 0 && !strings.Contains(string(style), rule) {
					t.Errorf("the style sheet lacks %q", rule)
				}
			}
		}
	}
}

// TestViews: a view never leaves the map, and a zoom keeps what is in its center.
func TestViews(t *testing.T) {
	v := home
	for range 10 {
		v = v.move(-panColumns, panRows)
	}
	if v != (View{1, 0, Rows}) || !v.Valid() {
		t.Errorf("moved to %+v", v)
	}
	in := home.zoomIn()
	middle := Place{X: (home.X + Columns/2) * TileSize << (MaxZoom - home.Zoom), Y: (home.Y*2 + Rows) * TileSize << (MaxZoom - home.Zoom) / 2}
	if x, y := in.locate(&middle); !in.Valid() || x != Columns*TileSize/2 || y < TileSize || y > 2*TileSize {
		t.Errorf("the center of %+v is at %d,%d of %+v", home, x, y, in)
	}
}

func TestResources(t *testing.T) {
	w := New(1)
	for _, path := range []string{
		"", "map/", "/map", "/other/", "/map/tile/0/4/0.png", "/map/tile/0/0/3.png", "/map/tile/4/0/0.png", "/map/tile/1/01/0.png", "/map/tile/1/+1/0.png",
		"/map/tile/1/1/0", "/map/tile/1/1/0.json", "/map/tile/1/-1/0.png", "/map/view/1/5/0.json", "/map/overview.png/", "/map/place/p0.json", "/map/place/i1.json", "/map/place/p1",
		"/map/photo/p1/4.png", "/map/photo/p1/1.png/", "/map/icons.png/", "/shop/item/p1.json", "/shop/photo/i1/9.png", "/shop/thumb/i1.png/", "/shop/thumb/i1",
		"/heavy/heavy/map/", "/map/../shop/", "/static/map.html", "/map.html", "/shop/icons.png/x", "/map/place/p01.json", "/shop/item/i1.json.json",
	} {
		if r, err := w.Resource(path, ""); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %+v, %v", path, r, err)
		}
	}
	for _, query := range []string{"x=1", "color=pink", "price=1", "price=2000&price=5000", "from=5", "from=-10", "from=99999", "q=%zz", "q=" + strings.Repeat("a", 65), strings.Repeat("q", 600)} {
		if r, err := w.Resource("/shop/search.json", query); !errors.Is(err, ErrQuery) {
			t.Errorf("%q: %+v, %v", query, r, err)
		}
	}
	r, err := w.Resource("/shop/search.json", "q=Red+mug&color=red&price=20000&from=0")
	if err != nil {
		t.Fatal(err)
	}
	var list listJSON
	if err := json.Unmarshal(r.Body(), &list); err != nil || list.Total != itemsPerColor || len(list.Items) != itemsPerColor || len(list.Recommended) != recommended {
		t.Errorf("%+v, %v", list, err)
	}
}

// FuzzResource: whatever a path and a query say, the answer is a resource with the size it has, or
// one of the two errors.
func FuzzResource(f *testing.F) {
	w := New(1)
	for _, s := range Services() {
		for _, load := range w.Task(s, false, 1).Loads {
			for _, r := range load.Requests {
				path, query, _ := strings.Cut(r.URI, "?")
				f.Add(path, query)
			}
		}
	}
	f.Add("/heavy/map/tile/3/31/23.png", "")
	f.Fuzz(func(t *testing.T, path, query string) {
		r, err := w.Resource(path, query)
		if err == nil {
			accessor.Call(t, r)
		}
		switch {
		case err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrQuery):
			t.Errorf("%q?%q: %v", path, query, err)
		case err == nil && r.Size <= 0:
			t.Errorf("%q?%q: %d bytes", path, query, r.Size)
		case err == nil && r.Type != "image/png" && len(r.Body()) != r.Size:
			t.Errorf("%q?%q: not of its size", path, query)
		}
	})
}

// BenchmarkImages draws one image of each kind that the services have most of.
func BenchmarkImages(b *testing.B) {
	w := New(1)
	for _, path := range []string{"/map/tile/2/5/5.png", "/heavy/map/tile/2/5/5.png", "/map/photo/p5/1.png", "/shop/thumb/i5.png", "/shop/photo/i5/1.png"} {
		b.Run(strings.ReplaceAll(path[1:], "/", "_"), func(b *testing.B) {
			r, err := w.Resource(path, "")
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				r.Body()
			}
		})
	}
}
