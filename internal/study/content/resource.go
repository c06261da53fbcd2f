package content

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"image/color"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

//go:embed static
var static embed.FS

// Resource is what a server answers to a request.
type Resource struct {
	// Type is the media type.
	Type string
	// Constant is set if the body depends on the path alone and not on the query, so that
	// servers and browsers may keep it.
	Constant bool
	// Localized is set if the body depends on the language of the world.
	Localized bool
	// Size is the length of the body in bytes. It is known without making the body.
	Size int

	body func() []byte
}

// Body makes the body. The caller owns it.
func (r Resource) Body() []byte { return r.body() }

// The reasons why there is no resource.
var (
	ErrNotFound = errors.New("not found")
	ErrQuery    = errors.New("query not understood")
)

// images are the dimensions of images by the segment of their path that names them.
var images = map[string]picture{
	"tile":     {TileSize, TileSize, 4},
	"overview": {TileSize, TileSize * Rows / Columns, 4},
	"mapthumb": {160, 120, 8},
	"mapphoto": {320, 240, 8},
	"route":    {200, 150, 8},
	"icon":     {32, 32, 8},
	"banner":   {960, 240, 8},
	"thumb":    {160, 160, 8},
	"small":    {96, 96, 8},
	"photo":    {320, 320, 8},
}

// dimensions returns the dimensions of an image, in the heavy variant with 2.5 device pixels per
// CSS pixel.
func dimensions(name string, heavy bool) picture {
	p := images[name]
	if heavy {
		return picture{p.width * 5 / 2, p.height * 5 / 2, 8}
	}
	return p
}

// Resource returns what a path has, which begins with "/", with the query of a URL, without "?".
// Errors are ErrNotFound, or wrap ErrQuery.
func (w *World) Resource(path, query string) (Resource, error) {
	path, ok := strings.CutPrefix(path, "/")
	if !ok {
		return Resource{}, ErrNotFound
	}
	path, heavy := strings.CutPrefix(path, heavyPrefix)
	service, rest, below := strings.Cut(path, "/")
	switch {
	case path == "":
		return file("index.html")
	case !below && path == "style.css":
		return file(path)
	case below && Service(service) == Map:
		return w.mapResource(rest, heavy)
	case below && Service(service) == Shop:
		return w.shopResource(rest, query, heavy)
	}
	return Resource{}, ErrNotFound
}

var mediaTypes = map[string]string{
	"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8",
}

// file returns an embedded file.
func file(name string) (Resource, error) {
	b, err := static.ReadFile("static/" + name)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	_, extension, _ := strings.Cut(name, ".")
	return Resource{Type: mediaTypes[extension], Constant: true, Size: len(b), body: func() []byte { return b }}, nil
}

// script returns the script of a service after what both services share: one request instead of
// two.
func script(name string) (Resource, error) {
	shared, err := file("page.js")
	if err != nil {
		return Resource{}, err
	}
	own, err := file(name)
	if err != nil {
		return Resource{}, err
	}
	own.Size += shared.Size
	body := own.body
	own.body = func() []byte { return slices.Concat(shared.body(), body()) }
	return own, nil
}

var documents = template.Must(template.ParseFS(static, "static/map.html", "static/shop.html"))

// localized is what each document has of its language.
type localized struct {
	Lang Language
	T    map[string]string
}

// fill replaces {name} by a value in a text, for pairs of both. The pages' scripts do the same.
func (l localized) fill(key string, pairs ...string) string {
	return strings.NewReplacer(pairs...).Replace(l.T[key])
}

// mapDocument is what the template of the map's first view shows. The images are in the document,
// so that a browser requests them when it has the document, before any script.
type mapDocument struct {
	localized

	Kinds     []string
	Tiles     []string
	Favorites []*Place
	Places    []*Place
	View      viewJSON
}

// shopDocument is what the template of the shop's first view shows: links by which a browser
// requests at once what the script shows.
type shopDocument struct {
	localized

	Categories, Colors []string
	Prices             []int
	Preloads           []preload
}

// Label returns the text of a place in a list.
func (d mapDocument) Label(p *Place) string {
	return d.fill("placeIn", "{place}", d.fill("name", "{name}", p.Name, "{kind}", d.T[p.Kind]), "{district}", d.T[p.District])
}

// UpTo returns the text of a price limit.
func (d shopDocument) UpTo(limit int) string {
	return d.fill("upTo", "{n}", grouped(strconv.Itoa(limit)))
}

type preload struct {
	Path  string
	Image bool
}

// document returns the document of a service's first view.
func (w *World) document(s Service) Resource {
	var content any
	own := localized{w.language, in(w.language)}
	if s == Map {
		content = mapDocument{own, placeKinds, tiles(home), best(w.visible(home)), w.visible(home), w.viewOf(home)}
	} else {
		d := shopDocument{localized: own, Categories: categories, Colors: colors, Prices: priceLimits}
		for _, path := range w.content(s) {
			d.Preloads = append(d.Preloads, preload{path, strings.HasSuffix(path, ".png")})
		}
		content = d
	}
	var b bytes.Buffer
	if err := documents.ExecuteTemplate(&b, string(s)+".html", content); err != nil {
		panic("BUG: " + err.Error())
	}
	return Resource{Type: mediaTypes["html"], Constant: true, Localized: true, Size: b.Len(), body: func() []byte { return bytes.Clone(b.Bytes()) }}
}

// resource returns an image.
func (p picture) resource(draw func() []byte) (Resource, error) {
	return Resource{Type: "image/png", Constant: true, Size: p.size(), body: draw}, nil
}

// encoded returns a value as JSON.
func encoded(v any, constant bool) (Resource, error) {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return Resource{Type: "application/json", Constant: constant, Size: len(b), body: func() []byte { return b }}, nil
}

// number parses a decimal number as it is printed, from 0 to limit-1.
func number(text string, limit int) (int, bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 0 && n < limit && strconv.Itoa(n) == text
}

// placeJSON is a place in a list.
type placeJSON struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	District string `json:"district"`
	// X and Y are relative to the corner of the view, in CSS pixels.
	X int `json:"x"`
	Y int `json:"y"`
}

// labelJSON is a district's name in the view.
type labelJSON struct {
	Name string `json:"name"`
	X    int    `json:"x"`
	Y    int    `json:"y"`
}

// viewJSON is what a view of the map shows besides its tiles.
type viewJSON struct {
	Places    []placeJSON `json:"places"`
	Favorites []string    `json:"favorites"`
	Districts []labelJSON `json:"districts"`
}

// detailJSON is a place that has been opened.
type detailJSON struct {
	placeJSON

	Features []string `json:"features"`
	Rating   int      `json:"rating"`
	Photos   int      `json:"photos"`
}

// chosenJSON confirms a choice.
type chosenJSON struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	Routes int    `json:"routes"`
}

func (w *World) mapResource(path string, heavy bool) (Resource, error) {
	if path == "" {
		return w.document(Map), nil
	}
	if path == "map.js" {
		return script(path)
	}
	kind, rest, _ := strings.Cut(path, "/")
	switch kind {
	case "overview.png":
		if path == kind {
			return w.tile(View{}, dimensions("overview", heavy), Columns)
		}
	case "tile", "view":
		return w.viewResource(kind, rest, heavy)
	case "icons.png":
		if path == kind {
			return w.icons(placeKinds, paints["blue"], heavy)
		}
	case "place", "chosen", "thumb", "photo", "route":
		return w.placeResource(kind, rest, heavy)
	}
	return Resource{}, ErrNotFound
}

// viewResource returns a tile or the places of a view: Z/X/Y.png or Z/X/Y.json.
func (w *World) viewResource(kind, path string, heavy bool) (Resource, error) {
	parts := strings.Split(path, "/")
	if len(parts) != 3 {
		return Resource{}, ErrNotFound
	}
	suffix := map[string]string{"tile": ".png", "view": ".json"}[kind]
	last, ok := strings.CutSuffix(parts[2], suffix)
	zoom, okZoom := number(parts[0], MaxZoom+1)
	x, okX := number(parts[1], Columns<<MaxZoom)
	y, okY := number(last, Rows<<MaxZoom)
	v := View{zoom, x, y}
	switch {
	case !ok || !okZoom || !okX || !okY:
	case kind == "tile" && x < Columns<<zoom && y < Rows<<zoom:
		return w.tile(v, dimensions(kind, heavy), 1)
	case kind == "view" && v.Valid():
		return encoded(w.viewOf(v), true)
	}
	return Resource{}, ErrNotFound
}

// tile returns an image of so many tiles in a row as one, from the first tile of the view on.
func (w *World) tile(v View, p picture, tiles int) (Resource, error) {
	side := TileSize * mapUnit << (MaxZoom - v.Zoom)
	return p.resource(func() []byte { return w.landscape(p, v.X*side, v.Y*side, tiles*side*256/p.width) })
}

func (w *World) viewOf(v View) viewJSON {
	shown := w.visible(v)
	out := viewJSON{Places: []placeJSON{}, Favorites: []string{}, Districts: []labelJSON{}}
	for _, p := range shown {
		x, y := v.locate(p)
		out.Places = append(out.Places, placeJSON{p.ID, p.Name, p.Kind, p.District, x, y})
	}
	for _, p := range best(shown) {
		out.Favorites = append(out.Favorites, p.ID)
	}
	const side = 1 << districtZoom
	for d, name := range w.districts {
		middle := Place{X: (2*(d%side) + 1) * Columns * TileSize << (MaxZoom - districtZoom) / 2, Y: (2*(d/side) + 1) * Rows * TileSize << (MaxZoom - districtZoom) / 2}
		if v.shows(&middle) {
			x, y := v.locate(&middle)
			out.Districts = append(out.Districts, labelJSON{name, x, y})
		}
	}
	return out
}

// icons returns the icons of kinds side by side, in one image: one request instead of one for each.
// The style sheet has their places in it.
func (w *World) icons(kinds []string, paint color.RGBA, heavy bool) (Resource, error) {
	p := dimensions("icon", heavy)
	p.width *= len(kinds)
	return p.resource(func() []byte { return photo(p, beside(kinds), paint, mix(w.seed, 7), 0) })
}

func (w *World) placeResource(kind, path string, heavy bool) (Resource, error) {
	id, rest, _ := strings.Cut(path, "/")
	switch kind {
	case "place", "chosen":
		id, _ = strings.CutSuffix(path, ".json")
		rest = path[len(id):]
	case "thumb":
		id, _ = strings.CutSuffix(path, ".png")
		rest = path[len(id):]
	}
	place, ok := w.place(id)
	if !ok {
		return Resource{}, ErrNotFound
	}
	seed := mix(w.seed, uint64(w.index[id]))
	draw := func(name string, variant int) (Resource, error) {
		p := dimensions(name, heavy)
		return p.resource(func() []byte { return photo(p, figures[place.Kind], paintOf(seed), seed, variant) })
	}
	switch {
	case kind == "place" && rest == ".json":
		listed := placeJSON{ID: place.ID, Name: place.Name, Kind: place.Kind, District: place.District, X: place.X, Y: place.Y}
		return encoded(detailJSON{listed, place.Features, place.Rating, placePhotos}, true)
	case kind == "chosen" && rest == ".json":
		return encoded(chosenJSON{place.ID, place.Name, place.Kind, routePhotos}, true)
	case kind == "thumb" && rest == ".png":
		return draw("mapthumb", 0)
	}
	name, isImage := strings.CutSuffix(rest, ".png")
	switch i, isNumber := number(name, placePhotos); {
	case !isImage || !isNumber:
	case kind == "photo":
		return draw("mapphoto", i)
	case kind == "route":
		p := dimensions("route", heavy)
		return p.resource(func() []byte { return way(p, seed, i) })
	}
	return Resource{}, ErrNotFound
}

func paintOf(seed uint64) color.RGBA { return paints[colors[mix(seed, 9)%uint64(len(colors))]] }

// itemJSON is an item in a list.
type itemJSON struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Category string `json:"category"`
	Color    string `json:"color"`
	Price    int    `json:"price"`
	Rating   int    `json:"rating"`
}

// listJSON is a list of items.
type listJSON struct {
	// Total is the number of results, of which Items are some.
	Total       int        `json:"total"`
	Items       []itemJSON `json:"items"`
	Recommended []itemJSON `json:"recommended"`
}

// articleJSON is an item that has been opened or put into the cart.
type articleJSON struct {
	itemJSON

	Photos      int        `json:"photos"`
	Recommended []itemJSON `json:"recommended"`
}

func itemsJSON(items []*Item) []itemJSON {
	out := []itemJSON{}
	for _, i := range items {
		out = append(out, itemJSON{i.ID, i.Name, i.Category, i.Color, i.Price, i.Rating})
	}
	return out
}

func (w *World) shopResource(path, query string, heavy bool) (Resource, error) {
	switch path {
	case "":
		return w.document(Shop), nil
	case "shop.js":
		return script(path)
	case "home.json":
		list := listJSON{Total: len(w.items), Recommended: itemsJSON(w.recommend(shelfHome, ""))}
		list.Items = itemsJSON(w.find(Search{})[:popular])
		return encoded(list, true)
	case "icons.png":
		return w.icons(categories, paints["black"], heavy)
	case "search.json":
		s, err := parseSearch(query)
		if err != nil {
			return Resource{}, err
		}
		found := w.find(s)
		list := listJSON{Total: len(found), Items: itemsJSON(s.page(found)), Recommended: itemsJSON(w.recommend(s.shelf(), s.encode()))}
		return encoded(list, false)
	case "banner.png":
		p := dimensions("banner", heavy)
		return p.resource(func() []byte {
			return photo(p, union(disk(-1200, 0, 300), disk(-400, 0, 300), disk(400, 0, 300), disk(1200, 0, 300)), paints["green"], mix(w.seed, 8), 0)
		})
	}
	kind, rest, _ := strings.Cut(path, "/")
	return w.itemResource(kind, rest, heavy)
}

func (w *World) itemResource(kind, path string, heavy bool) (Resource, error) {
	id, rest, _ := strings.Cut(path, "/")
	if kind != "photo" {
		id, _, _ = strings.Cut(path, ".")
		rest = path[len(id):]
	}
	item, ok := w.item(id)
	if !ok {
		return Resource{}, ErrNotFound
	}
	article := func(from shelf) (Resource, error) {
		listed := itemJSON{item.ID, item.Name, item.Category, item.Color, item.Price, item.Rating}
		return encoded(articleJSON{listed, itemPhotos, itemsJSON(w.recommend(from, id))}, true)
	}
	draw := func(name string, variant int) (Resource, error) {
		p := dimensions(name, heavy)
		return p.resource(func() []byte {
			return photo(p, figures[item.Category], paints[item.Color], mix(w.seed, uint64(1000+w.index[id])), variant)
		})
	}
	switch {
	case kind == "item" && rest == ".json":
		return article(shelfItem)
	case kind == "cart" && rest == ".json":
		return article(shelfCart)
	case (kind == "thumb" || kind == "small") && rest == ".png":
		return draw(kind, 0)
	case kind == "photo":
		name, isImage := strings.CutSuffix(rest, ".png")
		if i, ok := number(name, itemPhotos); ok && isImage {
			return draw(kind, i)
		}
	}
	return Resource{}, ErrNotFound
}

// maxRawQuery bounds a query before it is decoded, in bytes.
const maxRawQuery = 1024

// parseSearch parses the query of a search. Errors wrap ErrQuery.
func parseSearch(query string) (Search, error) {
	var s Search
	if len(query) > maxRawQuery {
		return s, fmt.Errorf("%w: %d bytes, more than %d", ErrQuery, len(query), maxRawQuery)
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return s, fmt.Errorf("%w: not encoded as a query", ErrQuery)
	}
	for key, list := range values {
		value := list[0]
		ok := len(list) == 1
		switch key {
		case "q":
			s.Text = value
			ok = ok && utf8.RuneCountInString(value) <= maxQuery
		case "color":
			s.Color = value
			ok = ok && (value == "" || slices.Contains(colors, value))
		case "price":
			i := slices.IndexFunc(priceLimits, func(n int) bool { return strconv.Itoa(n) == value })
			if ok = ok && i >= 0; ok {
				s.Price = priceLimits[i]
			}
		case "from":
			n, isNumber := number(value, len(categories)*len(colors)*itemsPerColor)
			s.From = n
			ok = ok && isNumber && n%perPage == 0
		default:
			ok = false
		}
		if !ok {
			return Search{}, fmt.Errorf("%w: key %q", ErrQuery, key)
		}
	}
	return s, nil
}
