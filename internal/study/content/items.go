package content

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
)

const (
	// itemsPerColor is the number of items of each category and color.
	itemsPerColor = 5
	// popular is the number of items of the shop's first view, perPage that of a page of results.
	popular = 24
	perPage = 10
	// recommended is the number of items that each view recommends with a small picture.
	recommended = 8
	itemPhotos  = 4
	// maxQuery bounds the text of a search in characters. The page does the same.
	maxQuery = 64
)

// Item is an article of the shop.
type Item struct {
	ID string
	// Name is without the category, which follows it in each language.
	Name     string
	Category string
	Color    string
	// Price is in yen.
	Price int
	// Rating is in tenths, 20 to 50.
	Rating int
}

var (
	categories = []string{"backpack", "blanket", "chair", "clock", "kettle", "lamp", "mug", "umbrella"}
	colors     = []string{"black", "blue", "green", "red", "white", "yellow"}
	// priceLimits are the upper limits of the price that the shop filters by.
	priceLimits = []int{2000, 5000, 10000, 20000}
	itemStems   = []string{
		"Alba", "Arco", "Bora", "Brisa", "Calma", "Cielo", "Corda", "Duna", "Faro", "Fiore", "Gala", "Isola", "Lago", "Luce", "Luna",
		"Mare", "Marea", "Monte", "Nebbia", "Notte", "Onda", "Ombra", "Pietra", "Prato", "Riva", "Sera", "Sole", "Stella", "Terra", "Vento",
	}
)

// stock draws the items. Their order is that of their popularity.
func (w *World) stock(rng *rand.Rand) {
	for _, category := range categories {
		stems := shuffled(rng, itemStems)
		for c, color := range colors {
			for i := range itemsPerColor {
				// One price below each limit, and one more.
				limit := priceLimits[min(i, len(priceLimits)-1)]
				w.items = append(w.items, Item{
					Name: stems[c*itemsPerColor+i], Category: category, Color: color,
					Price: limit - 10*rng.IntN(limit/20), Rating: 20 + rng.IntN(31),
				})
			}
		}
	}
	rng.Shuffle(len(w.items), func(i, j int) { w.items[i], w.items[j] = w.items[j], w.items[i] })
	for i := range w.items {
		w.items[i].ID = fmt.Sprintf("i%d", i+1)
		w.index[w.items[i].ID] = i
	}
}

// item returns the item with an id.
func (w *World) item(id string) (*Item, bool) {
	i, ok := w.index[id]
	if !ok || i >= len(w.items) || w.items[i].ID != id {
		return nil, false
	}
	return &w.items[i], true
}

// Search is a search in the shop. Its zero value finds everything.
type Search struct {
	// Text is a list of words, each of which must be in the name or the color, in any language.
	Text string
	// Color is one of the colors, or empty.
	Color string
	// Price is the highest price in yen, or 0.
	Price int
	// From is the number of results to leave out, a multiple of a page's.
	From int
}

// find returns all items that a search finds, whatever its From.
func (w *World) find(s Search) (found []*Item) {
	words := strings.Fields(strings.ToLower(s.Text))
	for i := range w.items {
		item := &w.items[i]
		text := strings.ToLower(item.Name)
		for _, l := range Languages() {
			text += " " + texts[item.Category].in(l) + " " + texts[item.Color].in(l)
		}
		if (s.Color == "" || s.Color == item.Color) && (s.Price == 0 || item.Price <= s.Price) &&
			!slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) }) {
			found = append(found, item)
		}
	}
	return found
}

// page returns the results that the search's page shows.
func (s Search) page(found []*Item) []*Item {
	return found[min(s.From, len(found)):min(s.From+perPage, len(found))]
}

// encode returns the query of a search, as the page's script writes it.
func (s Search) encode() string {
	var b strings.Builder
	fmt.Fprintf(&b, "q=%s&color=%s", url.QueryEscape(s.Text), s.Color)
	if s.Price > 0 {
		fmt.Fprintf(&b, "&price=%d", s.Price)
	}
	if s.From > 0 {
		fmt.Fprintf(&b, "&from=%d", s.From)
	}
	return b.String()
}

// shelf is where a view takes its recommendations from. Views of different shelves have none in
// common.
type shelf int

const (
	shelfHome shelf = iota
	shelfSearch
	shelfColor
	shelfPrice
	shelfColorAndPrice
	shelfItem
	shelfCart
	shelves
)

// shelf returns the shelf of the search's recommendations.
func (s Search) shelf() shelf {
	switch {
	case s.Price > 0 && s.Color != "":
		return shelfColorAndPrice
	case s.Price > 0:
		return shelfPrice
	case s.Color != "":
		return shelfColor
	default:
		return shelfSearch
	}
}

// recommend returns the items that a view recommends. Equal keys have equal recommendations.
func (w *World) recommend(from shelf, key string) (items []*Item) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // never fails
	n := len(w.items) / int(shelves)
	rng := rand.New(rand.NewPCG(w.seed, h.Sum64()))
	for _, i := range rng.Perm(n)[:recommended] {
		items = append(items, &w.items[int(from)*n+i])
	}
	return items
}
