package content

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// The map is Columns x Rows tiles at zoom 0 and twice as many in each direction at each further
// zoom; a view always has Columns x Rows tiles.
const (
	Columns = 4
	Rows    = 3
	MaxZoom = 3
	// TileSize is the length of a tile's side in CSS pixels.
	TileSize = 256
	// districtZoom is the zoom at which a view can show exactly one district.
	districtZoom = 2
	// placesPerKind is the number of places of each kind in a district.
	placesPerKind = 2
	// favorites are the best rated places of a view that are shown with a picture.
	favorites = 6
	// placePhotos and routePhotos are the pictures of a place, and of the way to it.
	placePhotos = 4
	routePhotos = 4
)

// Place is a place on the map.
type Place struct {
	ID string
	// Name is without the kind, which follows it in each language.
	Name     string
	Kind     string
	District string
	// X and Y are its position in CSS pixels at MaxZoom.
	X, Y int
	// Features are sorted.
	Features []string
	// Rating is in tenths, 20 to 50.
	Rating int
}

var (
	placeKinds    = []string{"cafe", "hotel", "museum", "pharmacy", "restaurant"}
	placeFeatures = []string{"free wifi", "garden", "open at night", "parking", "pets welcome", "step-free entrance"}
	districtNames = []string{"Aoba", "Chuo", "Fuji", "Hama", "Izumi", "Kita", "Midori", "Minami", "Naka", "Nishi", "Oka", "Sakae", "Shiro", "Tani", "Ura", "Yama"}
	// placeStems are as many as there are places of a kind.
	placeStems = []string{
		"Acorn", "Anchor", "Bamboo", "Beacon", "Birch", "Bluebell", "Cedar", "Clover", "Compass", "Coral", "Crane",
		"Dolphin", "Elm", "Falcon", "Fern", "Fox", "Harbor", "Heron", "Iris", "Juniper", "Lantern", "Laurel", "Lotus", "Maple", "Olive", "Otter",
		"Pine", "Plum", "Raven", "Sparrow", "Willow", "Wren",
	}
)

// settle draws the places.
func (w *World) settle(rng *rand.Rand) {
	w.districts = shuffled(rng, districtNames)
	stems := map[string][]string{}
	for _, k := range placeKinds {
		stems[k] = shuffled(rng, placeStems)
	}
	// A district is a grid of cells with one place in each, so that no marker hides another.
	const side = 1 << districtZoom
	const width, height = Columns * TileSize << (MaxZoom - districtZoom), Rows * TileSize << (MaxZoom - districtZoom)
	cells := len(placeKinds) * placesPerKind
	columns := cells / 2
	for d, district := range w.districts {
		at := rng.Perm(cells)
		for k, kind := range placeKinds {
			for i := range placesPerKind {
				cell := at[k*placesPerKind+i]
				stem := stems[kind][0]
				stems[kind] = stems[kind][1:]
				p := Place{
					ID: fmt.Sprintf("p%d", len(w.places)+1), Name: stem, Kind: kind, District: district,
					X:      d%side*width + within(rng, cell%columns, width/columns),
					Y:      d/side*height + within(rng, cell/columns, height/2),
					Rating: 20 + rng.IntN(31),
				}
				chosen := rng.Perm(len(placeFeatures))[:2+rng.IntN(2)]
				if i > 0 { // differs from the other one of its kind
					other := w.places[len(w.places)-1].Features
					for len(unlike(chosen, other)) == 0 {
						chosen = rng.Perm(len(placeFeatures))[:2+rng.IntN(2)]
					}
				}
				for _, f := range chosen {
					p.Features = append(p.Features, placeFeatures[f])
				}
				slices.Sort(p.Features)
				w.index[p.ID] = len(w.places)
				w.places = append(w.places, p)
			}
		}
	}
}

// within returns a random position in a cell of a row of cells, not near its edges.
func within(rng *rand.Rand, cell, size int) int { return cell*size + size/4 + rng.IntN(size/2) }

// unlike returns those of the features, by index, that are not in others.
func unlike(features []int, others []string) (names []string) {
	for _, f := range features {
		if !slices.Contains(others, placeFeatures[f]) {
			names = append(names, placeFeatures[f])
		}
	}
	return names
}

// place returns the place with an id.
func (w *World) place(id string) (*Place, bool) {
	i, ok := w.index[id]
	if !ok || i >= len(w.places) || w.places[i].ID != id {
		return nil, false
	}
	return &w.places[i], true
}

// View is a part of the map: Columns x Rows tiles of a zoom, the first of which is (X, Y).
type View struct{ Zoom, X, Y int }

// home is the first view.
var home = View{Zoom: 1, X: Columns / 2, Y: Rows / 2}

// Valid reports whether the view is on the map.
func (v View) Valid() bool {
	return v.Zoom >= 0 && v.Zoom <= MaxZoom && v.X >= 0 && v.X <= v.last(Columns) && v.Y >= 0 && v.Y <= v.last(Rows)
}

// last returns the highest first tile of a view of n tiles in one direction.
func (v View) last(n int) int { return n<<v.Zoom - n }

// move returns the view that is so many tiles away, or as far as the map goes. The page's script
// does the same.
func (v View) move(x, y int) View {
	v.X = min(max(v.X+x, 0), v.last(Columns))
	v.Y = min(max(v.Y+y, 0), v.last(Rows))
	return v
}

// zoomIn returns the view of the next zoom with the same center, as far as tiles allow. The page's
// script does the same.
func (v View) zoomIn() View {
	v.Zoom++
	v.X, v.Y = 2*v.X, 2*v.Y
	return v.move(Columns/2, Rows/2)
}

// locate returns the position of a place in CSS pixels from the corner of the view.
func (v View) locate(p *Place) (x, y int) {
	return p.X>>(MaxZoom-v.Zoom) - v.X*TileSize, p.Y>>(MaxZoom-v.Zoom) - v.Y*TileSize
}

// shows reports whether a place is in the view.
func (v View) shows(p *Place) bool {
	x, y := v.locate(p)
	return x >= 0 && x < Columns*TileSize && y >= 0 && y < Rows*TileSize
}

// visible returns the places of a view in the order of their numbers.
func (w *World) visible(v View) (places []*Place) {
	for i := range w.places {
		if v.shows(&w.places[i]) {
			places = append(places, &w.places[i])
		}
	}
	return places
}

// best returns the best rated of the places.
func best(places []*Place) []*Place {
	out := slices.Clone(places)
	slices.SortStableFunc(out, func(a, b *Place) int { return b.Rating - a.Rating })
	return out[:min(len(out), favorites)]
}
