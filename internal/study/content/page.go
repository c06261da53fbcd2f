// Package content is the content of the two web services that tabane site serves, a map and a shop,
// as functions of a seed: what there is to find, each resource with its bytes, the tasks of a
// player with the steps that reach the goal, and what a browser requests for each of them.
//
// It has no sockets, files, clock or global randomness, and keeps nothing: the server that caches
// images is site, the client that requests pages without a browser is traffic.
package content

import "math/rand/v2"

// Service is one of the two web services.
type Service string

// The services.
const (
	Map  Service = "map"
	Shop Service = "shop"
)

// Services are all services.
func Services() []Service { return []Service{Map, Shop} }

// heavyPrefix is the first segment of the paths of the heavy variant of both services.
const heavyPrefix = "heavy/"

// Path returns the path of a service's first view. The heavy variant is the same content with
// images for a display of 2.5 device pixels per CSS pixel.
func Path(s Service, heavy bool) string {
	if heavy {
		return "/" + heavyPrefix + string(s) + "/"
	}
	return "/" + string(s) + "/"
}

// World is the content of both services. It is read-only and safe for concurrent use.
type World struct {
	seed      uint64
	language  Language
	districts []string
	places    []Place
	items     []Item
	index     map[string]int // of a place's or item's id
}

// streams of random numbers of a seed, so that one does not depend on the length of another.
const (
	streamMap = iota + 1
	streamShop
	streamTask
	streamVisits
)

// New returns the world of a seed: equal for equal seeds, on every machine.
func New(seed uint64) *World {
	w := &World{seed: seed, language: English, index: map[string]int{}}
	w.settle(rand.New(rand.NewPCG(seed, streamMap)))
	w.stock(rand.New(rand.NewPCG(seed, streamShop)))
	return w
}

// shuffled returns a copy of a list in random order.
func shuffled[T any](rng *rand.Rand, list []T) []T {
	out := append([]T(nil), list...)
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// mix returns a hash of two numbers (the finalizer of splitmix64).
func mix(a, b uint64) uint64 {
	x := a + 0x9e3779b97f4a7c15*(b+1)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Seed returns the seed of the world.
func (w *World) Seed() uint64 { return w.seed }
