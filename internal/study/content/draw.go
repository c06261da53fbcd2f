package content

import "image/color"

// The images are drawn with integers only: floating point may differ between processors.

// grain is noise over the plane: the values of a grid of random numbers, interpolated. It is
// evaluated row by row, and remembers the cell that it is in.
type grain struct {
	seed  uint64
	shift int // the binary logarithm of the length of a cell's side
	cx    int
	// left and right are the values of the cell's sides in the current row.
	left, right int
}

// start moves to the position before the first one of a row.
func (g *grain) start() { g.cx = -1 }

// at returns the value of a position in 0..1023. Positions are >= 0.
func (g *grain) at(x, y int) int {
	if cx := x >> g.shift; cx != g.cx {
		g.left, g.right, g.cx = g.side(cx, y), g.side(cx+1, y), cx
	}
	return g.between(g.left, g.right, x)
}

// side returns the value of the left side of a cell in a row.
func (g *grain) side(cx, y int) int {
	cy := y >> g.shift
	return g.between(g.corner(cx, cy), g.corner(cx, cy+1), y)
}

// between interpolates from a to b by a position in a cell.
func (g *grain) between(a, b, at int) int { return a + (b-a)*(at&(1<<g.shift-1))>>g.shift }

func (g *grain) corner(cx, cy int) int { return int(mix(g.seed, uint64(cy)<<32|uint64(cx)) >> 54) }

// The map is drawn in units of 1/16 CSS pixel at MaxZoom.
const mapUnit = 16

// Land uses, in the order of the tile's palette.
const (
	deepWater = iota
	water
	sand
	meadow
	grass
	park
	wood
	denseWood
	field
	housing
	building
	industry
	street
	road
	border
	rail
)

var landColors = [16]color.RGBA{
	deepWater: {0x8f, 0xbf, 0xdf, 0xff}, water: {0xa9, 0xd3, 0xe9, 0xff}, sand: {0xf2, 0xe6, 0xbf, 0xff},
	meadow: {0xd4, 0xe8, 0xb8, 0xff}, grass: {0xc8, 0xe2, 0xa8, 0xff}, park: {0xb5, 0xdd, 0xa1, 0xff},
	wood: {0xa6, 0xcd, 0x98, 0xff}, denseWood: {0x97, 0xc1, 0x8c, 0xff}, field: {0xee, 0xee, 0xd0, 0xff},
	housing: {0xe9, 0xe5, 0xdf, 0xff}, building: {0xd6, 0xcc, 0xc2, 0xff}, industry: {0xe4, 0xd8, 0xe6, 0xff},
	street: {0xff, 0xff, 0xff, 0xff}, road: {0xfa, 0xd0, 0x7c, 0xff}, border: {0xb0, 0x7a, 0xb0, 0xff}, rail: {0x8a, 0x8a, 0x8a, 0xff},
}

// landscape draws a part of the map of which (x, y) is the corner and pixel the length of a pixel's
// side in 1/256 units.
func (w *World) landscape(p picture, x, y, pixel int) []byte {
	height := grain{seed: mix(w.seed, 1), shift: 13}
	rough := grain{seed: mix(w.seed, 2), shift: 11}
	fine := grain{seed: mix(w.seed, 3), shift: 8}
	town := grain{seed: mix(w.seed, 4), shift: 13}
	return p.encode(landPalette(p.depth), func(row int, pixels []byte) {
		for _, g := range []*grain{&height, &rough, &fine, &town} {
			g.start()
		}
		v := y + row*pixel/256
		for i := range pixels {
			u := x + i*pixel/256
			shade := fine.at(u, v)
			use := land(height.at(u, v)+(rough.at(u, v)-512)/4+(shade-512)/24, town.at(u, v), shade, u/mapUnit, v/mapUnit)
			if p.depth == 8 {
				use = use<<4 | shade>>6
			}
			pixels[i] = byte(use)
		}
	})
}

// land returns the land use of a position in CSS pixels at MaxZoom.
func land(height, town, shade, x, y int) int {
	const districtWidth, districtHeight = Columns * TileSize << (MaxZoom - districtZoom), Rows * TileSize << (MaxZoom - districtZoom)
	switch {
	case x%districtWidth < 3 && y/16%2 == 0, y%districtHeight < 3 && x/16%2 == 0:
		return border
	case x%512 < 12 || y%768 < 12:
		return road
	case (x+y)%3000 < 6:
		return rail
	case height < 230:
		return deepWater
	case height < 300:
		return water
	case height < 325:
		return sand
	case town > 480:
		switch {
		case x%96 < 5 || y%80 < 5:
			return street
		case x%24 > 6 && y%20 > 6 && shade > 300:
			return building
		case town > 850:
			return industry
		}
		return housing
	case height < 430:
		return meadow
	case height < 520:
		return field
	case height < 600:
		return grass
	case height < 660:
		return park
	case height < 760:
		return wood
	default:
		return denseWood
	}
}

// landPalette returns the colors of the map. With 8 bits each land use has 16 shades.
func landPalette(depth int) []color.RGBA {
	if depth == 4 {
		return landColors[:]
	}
	var palette []color.RGBA
	for _, c := range landColors {
		for shade := range 16 {
			palette = append(palette, scale(c, 232+3*shade/2))
		}
	}
	return palette
}

// scale returns a color with its brightness multiplied by n/255, at most white.
func scale(c color.RGBA, n int) color.RGBA {
	f := func(v uint8) uint8 { return uint8(min(int(v)*n/255, 255)) }
	return color.RGBA{f(c.R), f(c.G), f(c.B), 0xff}
}

// shape reports whether a position is part of a figure, in a square of 1000 x 1000 around its
// center, so from -500 to 499.
type shape func(x, y int) bool

func box(x, y, width, height int) shape {
	return func(px, py int) bool { return px >= x && px < x+width && py >= y && py < y+height }
}

func disk(x, y, r int) shape {
	return func(px, py int) bool { return (px-x)*(px-x)+(py-y)*(py-y) < r*r }
}

func both(a, b shape) shape { return func(x, y int) bool { return a(x, y) && b(x, y) } }

func outside(a shape) shape { return func(x, y int) bool { return !a(x, y) } }

func union(list ...shape) shape {
	return func(x, y int) bool {
		for _, s := range list {
			if s(x, y) {
				return true
			}
		}
		return false
	}
}

// ring is a disk with a hole.
func ring(x, y, outer, inner int) shape { return both(disk(x, y, outer), outside(disk(x, y, inner))) }

// beside has the figures of a list side by side.
func beside(names []string) shape {
	return func(x, y int) bool {
		x += 500 * len(names)
		return figures[names[x/1000]](x%1000-500, y)
	}
}

// figures are the outlines of categories of items and of kinds of places.
var figures = map[string]shape{
	"backpack":   union(box(-250, -200, 500, 550), disk(0, -180, 250), ring(0, -430, 110, 70)),
	"blanket":    both(box(-380, -250, 760, 500), func(x, y int) bool { return (x+y+1000)%120 > 20 }),
	"chair":      union(box(-220, -400, 70, 800), box(-220, 0, 440, 80), box(150, 0, 70, 400)),
	"clock":      union(ring(0, 0, 400, 340), box(-20, -260, 40, 280), box(-20, -20, 220, 40)),
	"kettle":     union(disk(0, 80, 280), ring(0, -200, 200, 150), box(200, -60, 200, 60)),
	"lamp":       union(func(x, y int) bool { return y > -400 && y < -50 && max(x, -x) < 120+(y+400)/2 }, box(-25, -50, 50, 380), box(-180, 320, 360, 60)),
	"mug":        union(box(-250, -250, 400, 520), ring(150, 0, 170, 110)),
	"umbrella":   union(both(disk(0, 0, 400), box(-400, -400, 800, 400)), box(-20, 0, 40, 320), ring(70, 320, 90, 55)),
	"cafe":       union(box(-250, -120, 380, 360), ring(130, 40, 130, 80), box(-300, 280, 520, 50)),
	"hotel":      union(box(-380, 0, 760, 150), box(-380, -250, 60, 550), box(320, 0, 60, 300), disk(-220, -90, 90)),
	"museum":     union(func(x, y int) bool { return y > -400 && y < -180 && max(x, -x) < 2*(y+400) }, box(-350, -150, 90, 400), box(-130, -150, 90, 400), box(60, -150, 90, 400), box(270, -150, 90, 400), box(-420, 270, 860, 80)),
	"pharmacy":   union(box(-100, -350, 200, 700), box(-350, -100, 700, 200)),
	"restaurant": union(box(-220, -400, 50, 800), box(-300, -400, 30, 250), box(-120, -400, 30, 250), box(-300, -180, 210, 40), box(130, -400, 60, 800), disk(160, -250, 110)),
}

// paints are the colors of items. Other keys of a picture get one of them.
var paints = map[string]color.RGBA{
	"black": {0x3a, 0x3a, 0x40, 0xff}, "blue": {0x2f, 0x63, 0xb8, 0xff}, "green": {0x35, 0x8a, 0x4c, 0xff},
	"red": {0xc0, 0x3a, 0x36, 0xff}, "white": {0xf4, 0xf2, 0xec, 0xff}, "yellow": {0xe8, 0xbf, 0x3c, 0xff},
}

// photo draws a figure of a color on a background that depends on the seed. variant moves the
// figure, so that the pictures of one thing differ.
func photo(p picture, figure shape, paint color.RGBA, seed uint64, variant int) []byte {
	back := color.RGBA{uint8(150 + mix(seed, 1)%80), uint8(150 + mix(seed, 2)%80), uint8(150 + mix(seed, 3)%80), 0xff}
	palette := make([]color.RGBA, 0, 256)
	for _, c := range []color.RGBA{back, paint} {
		for shade := range 128 {
			palette = append(palette, scale(c, 160+shade))
		}
	}
	light := grain{seed: mix(seed, 4), shift: 8}
	cloth := grain{seed: mix(seed, uint64(5+variant)), shift: 3}
	side := min(p.width, p.height)
	turn := variant*70 - variant*variant*9
	return p.encode(palette, func(y int, pixels []byte) {
		light.start()
		cloth.start()
		v := (y - p.height/2) * 1000 / side
		for x := range pixels {
			u := (x - p.width/2) * 1000 / side
			shade := (light.at(u+4000, v+1000)*3+cloth.at(u+4000, v+1000))/4*128/1024 - v/40
			n := min(max(shade, 0), 127)
			if figure(u+turn, v-turn/2) {
				n += 128
			}
			pixels[x] = byte(n)
		}
	})
}

// way draws a street in perspective, for the way to a place.
func way(p picture, seed uint64, variant int) []byte {
	bend := int(mix(seed, uint64(variant))%600) - 300
	return photo(p, func(x, y int) bool {
		return y > -60 && max(x-bend*(500-y)/1000, -(x-bend*(500-y)/1000)) < 60+(y+60)*2/3
	}, color.RGBA{0x7a, 0x7a, 0x80, 0xff}, seed, variant)
}
