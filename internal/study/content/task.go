package content

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

// Action is what a player does with an element of a page.
type Action string

// The actions.
const (
	// Click clicks on the element.
	Click Action = "click"
	// Type focuses the element and types Text.
	Type Action = "type"
	// Key focuses the element and presses the key with the name in Text ("Enter", "ArrowLeft").
	Key Action = "key"
)

// Step is one action of a player.
type Step struct {
	// Think is how long the player waits before it, after the previous step is complete.
	Think  time.Duration `json:"think_ns"`
	Action Action        `json:"action"`
	// Selector is the CSS selector of exactly one element.
	Selector string `json:"selector"`
	Text     string `json:"text,omitempty"`
	// Loads is set if the page counts the step in dataset.step when it is complete. Other steps are
	// complete at once.
	Loads bool `json:"loads"`
}

// Condition is what a place or item has to meet.
type Condition struct {
	// Key is kind, district or feature of a place; category, color or price of an item.
	Key string `json:"key"`
	// Value is the value of the key, of price the highest.
	Value string `json:"value"`
	// Text is the condition for people.
	Text string `json:"text"`
}

// Task is what a player is to find and how one player finds it.
type Task struct {
	Service Service `json:"service"`
	// Path is the path of the first view.
	Path       string       `json:"path"`
	Conditions [3]Condition `json:"conditions"`
	// Goal is the place or item that the steps reach. It meets all conditions.
	Goal string `json:"goal"`
	// Steps follow the first view.
	Steps []Step `json:"steps"`
	// Loads is what a browser requests: for the first view, then for each of the Steps that loads.
	Loads []Load `json:"loads"`
}

// Think returns the sum of the think times of the steps.
func (t Task) Think() (sum time.Duration) {
	for _, s := range t.Steps {
		sum += s.Think
	}
	return sum
}

// Load is what a browser requests for one view, except what it has from the views before.
type Load struct {
	// Think is the time since the previous load was complete.
	Think    time.Duration `json:"think_ns"`
	Requests []Request     `json:"requests"`
}

// Bytes returns the length of all bodies.
func (l Load) Bytes() (n int64) {
	for _, r := range l.Requests {
		n += int64(r.Bytes)
	}
	return n
}

// Request is a GET request.
type Request struct {
	// URI is the path with its query.
	URI string `json:"uri"`
	// Bytes is the length of the body.
	Bytes int `json:"bytes"`
	// After is the request of the same load whose body has to be complete before, by its index; -1
	// for none.
	After int `json:"after"`
}

// Met returns how many of the task's conditions a place or item meets, by its id: 0 for an unknown
// one.
func (w *World) Met(t Task, chosen string) (n int) {
	for _, c := range t.Conditions {
		if w.meets(t.Service, c, chosen) {
			n++
		}
	}
	return n
}

// Has reports whether a service has a place or item with an id.
func (w *World) Has(s Service, id string) bool {
	if s == Map {
		_, ok := w.place(id)
		return ok
	}
	_, ok := w.item(id)
	return ok
}

func (w *World) meets(s Service, c Condition, chosen string) bool {
	if s == Map {
		p, ok := w.place(chosen)
		return ok && (c.Key == "kind" && p.Kind == c.Value || c.Key == "district" && p.District == c.Value || c.Key == "feature" && slices.Contains(p.Features, c.Value))
	}
	i, ok := w.item(chosen)
	if !ok {
		return false
	}
	limit, err := strconv.Atoi(c.Value)
	return c.Key == "category" && i.Category == c.Value || c.Key == "color" && i.Color == c.Value || c.Key == "price" && err == nil && i.Price <= limit
}

// Think times are uniform between these.
const (
	minThink = time.Second
	maxThink = 5 * time.Second
)

// Task returns the task of a seed: equal for equal seeds of the task and of the world.
func (w *World) Task(s Service, heavy bool, seed uint64) Task {
	p := player{w: w, rng: rand.New(rand.NewPCG(seed, streamTask)), heavy: heavy, seen: map[string]bool{}, document: -1}
	p.task = Task{Service: s, Path: Path(s, heavy)}
	if s == Map {
		p.findPlace()
	} else {
		p.buyItem()
	}
	return p.task
}

// player makes a task with its steps and what they request. It does what the scripts of the pages
// do.
type player struct {
	w     *World
	rng   *rand.Rand
	heavy bool
	task  Task
	seen  map[string]bool
	// document is the request of the current load that the next ones wait for, or -1.
	document int
	// waited is the think time since the last load.
	waited time.Duration
}

// meet sets the conditions of the task from pairs of a key and its value.
func (p *player) meet(pairs ...string) {
	for i := range p.task.Conditions {
		key, value := pairs[2*i], pairs[2*i+1]
		p.task.Conditions[i] = Condition{key, value, p.w.language.Condition(key, value)}
	}
}

// step adds a step. One that loads begins a Load.
func (p *player) step(action Action, selector, text string, loads bool) {
	think := minThink + time.Duration(p.rng.Int64N(int64(maxThink-minThink)))
	if !loads {
		think = minThink // until it begins to type
	}
	p.task.Steps = append(p.task.Steps, Step{think, action, selector, text, loads})
	p.waited += think
	if loads {
		p.load()
	}
}

func (p *player) load() {
	p.task.Loads = append(p.task.Loads, Load{Think: p.waited})
	p.waited, p.document = 0, -1
}

// get adds a request to the load unless the browser has the resource, and returns its index. The
// path is relative to the service's first view.
func (p *player) get(path, query string) int { return p.request(p.task.Path+path, query) }

func (p *player) request(path, query string) int {
	r, err := p.w.Resource(path, query)
	if err != nil {
		panic(fmt.Sprintf("BUG: %s?%s: %v", path, query, err))
	}
	uri := path
	if query != "" {
		uri += "?" + query
	}
	load := &p.task.Loads[len(p.task.Loads)-1]
	if r.Constant && p.seen[uri] {
		return p.document
	}
	p.seen[uri] = true
	load.Requests = append(load.Requests, Request{uri, r.Size, p.document})
	return len(load.Requests) - 1
}

// content returns what a service's first view shows of the world, relative to the document.
func (w *World) content(s Service) (paths []string) {
	if s == Map {
		return append(tiles(home), thumbs(best(w.visible(home)))...)
	}
	return append([]string{"home.json"}, pictures(w.find(Search{})[:popular], w.recommend(shelfHome, ""))...)
}

// first adds the requests of a first view: the document, which all others wait for, what it loads
// first, and the images in it.
func (p *player) first(images ...string) {
	p.load()
	p.document = p.get("", "")
	root := Path("", p.heavy)
	root = root[:len(root)-1]
	p.request(root+"style.css", "")
	p.get(string(p.task.Service)+".js", "")
	for _, path := range slices.Concat(p.w.content(p.task.Service), images) {
		p.get(path, "")
	}
}

// findPlace makes the task of the map.
func (p *player) findPlace() {
	goal := &p.w.places[p.rng.IntN(len(p.w.places))]
	// The places of that kind in the district differ in a feature.
	i := slices.IndexFunc(p.w.places, func(o Place) bool { return o.District == goal.District && o.Kind == goal.Kind && o.ID != goal.ID })
	other := &p.w.places[i]
	var own []string
	for _, f := range goal.Features {
		if !slices.Contains(other.Features, f) {
			own = append(own, f)
		}
	}
	if len(own) == 0 { // the goal has less than the other one
		goal, other = other, goal
		for _, f := range goal.Features {
			if !slices.Contains(other.Features, f) {
				own = append(own, f)
			}
		}
	}
	feature := own[p.rng.IntN(len(own))]
	p.task.Goal = goal.ID
	p.meet("kind", goal.Kind, "district", goal.District, "feature", feature)

	v := home
	p.first("icons.png", "overview.png")
	v = p.approach(v, goal)
	for v.Zoom < districtZoom+p.rng.IntN(2) {
		v = v.zoomIn()
		p.control("zoom-in", "+")
		p.view(v)
		v = p.approach(v, goal)
	}
	if p.rng.IntN(2) == 0 && v.shows(other) {
		p.open(other)
	}
	p.open(goal)
	p.step(Click, "#choose", "", true)
	p.document = p.get("chosen/"+goal.ID+".json", "")
	for i := range routePhotos {
		p.get(fmt.Sprintf("route/%s/%d.png", goal.ID, i), "")
	}
}

// panColumns and panRows are how far one step moves the map. The page's script does the same.
const (
	panColumns = 2
	panRows    = 1
)

// approach moves the view step by step until it shows a place, and returns it.
func (p *player) approach(v View, goal *Place) View {
	for !v.shows(goal) {
		x, y := v.locate(goal)
		switch {
		case x < 0:
			v = v.move(-panColumns, 0)
			p.control("west", "ArrowLeft")
		case x >= Columns*TileSize:
			v = v.move(panColumns, 0)
			p.control("east", "ArrowRight")
		case y < 0:
			v = v.move(0, -panRows)
			p.control("north", "ArrowUp")
		default:
			v = v.move(0, panRows)
			p.control("south", "ArrowDown")
		}
		p.view(v)
	}
	return v
}

// control adds a step that uses a button of the map or its key.
func (p *player) control(id, key string) {
	if p.rng.IntN(2) == 0 {
		p.step(Key, "#map", key, true)
	} else {
		p.step(Click, "#"+id, "", true)
	}
}

// path returns the path of what a view shows besides its tiles.
func (v View) path() string { return fmt.Sprintf("view/%d/%d/%d.json", v.Zoom, v.X, v.Y) }

// tiles returns the paths of the tiles of a view.
func tiles(v View) (paths []string) {
	for y := range Rows {
		for x := range Columns {
			paths = append(paths, fmt.Sprintf("tile/%d/%d/%d.png", v.Zoom, v.X+x, v.Y+y))
		}
	}
	return paths
}

// thumbs returns the paths of the pictures of places.
func thumbs(places []*Place) (paths []string) {
	for _, p := range places {
		paths = append(paths, "thumb/"+p.ID+".png")
	}
	return paths
}

// view adds the requests of a view of the map.
func (p *player) view(v View) {
	for _, path := range tiles(v) {
		p.get(path, "")
	}
	p.document = p.get(v.path(), "")
	for _, path := range thumbs(best(p.w.visible(v))) {
		p.get(path, "")
	}
}

// open opens a place from the list of the view.
func (p *player) open(place *Place) {
	p.step(Click, fmt.Sprintf("#places [data-place=%q]", place.ID), "", true)
	p.document = p.get("place/"+place.ID+".json", "")
	for i := range placePhotos {
		p.get(fmt.Sprintf("photo/%s/%d.png", place.ID, i), "")
	}
}

// buyItem makes the task of the shop.
func (p *player) buyItem() {
	goal := &p.w.items[p.rng.IntN(len(p.w.items))]
	limit := priceLimits[slices.IndexFunc(priceLimits, func(n int) bool { return goal.Price <= n })]
	p.task.Goal = goal.ID
	p.meet("category", goal.Category, "color", goal.Color, "price", strconv.Itoa(limit))

	p.first("icons.png", "banner.png")

	s := Search{Text: texts[goal.Category].in(p.w.language)}
	p.step(Type, "#search", s.Text, false)
	p.step(Key, "#search", "Enter", true)
	found := p.search(s)
	if p.rng.IntN(2) == 0 && slices.Contains(found[perPage:], goal) {
		s.Price = limit
		p.step(Click, fmt.Sprintf("#price-%d", limit), "", true)
		found = p.search(s)
	}
	if !slices.Contains(s.page(found), goal) || p.rng.IntN(2) == 0 {
		s.Color = goal.Color
		p.step(Click, "#color-"+s.Color, "", true)
		found = p.search(s)
	}
	if shown := s.page(found); p.rng.IntN(2) == 0 && shown[0] != goal {
		p.article(shown[0])
	}
	p.article(goal)
	p.step(Click, "#add", "", true)
	p.document = p.get("cart/"+goal.ID+".json", "")
	p.list(nil, shelfCart, goal.ID)
}

// search adds the requests of a search and returns what it finds.
func (p *player) search(s Search) []*Item {
	found := p.w.find(s)
	p.document = p.get("search.json", s.encode())
	p.list(s.page(found), s.shelf(), s.encode())
	return found
}

// article opens an item from the list of results.
func (p *player) article(item *Item) {
	p.step(Click, fmt.Sprintf("#results [data-item=%q]", item.ID), "", true)
	p.document = p.get("item/"+item.ID+".json", "")
	for i := range itemPhotos {
		p.get(fmt.Sprintf("photo/%s/%d.png", item.ID, i), "")
	}
	p.list(nil, shelfItem, item.ID)
}

// list adds the requests of a list of items and of recommendations.
func (p *player) list(items []*Item, from shelf, key string) {
	for _, path := range pictures(items, p.w.recommend(from, key)) {
		p.get(path, "")
	}
}

// pictures returns the paths of the pictures of items in a list, and of recommended ones.
func pictures(items, recommended []*Item) (paths []string) {
	for _, i := range items {
		paths = append(paths, "thumb/"+i.ID+".png")
	}
	for _, i := range recommended {
		paths = append(paths, "small/"+i.ID+".png")
	}
	return paths
}
