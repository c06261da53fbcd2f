package simrun

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/epe/arrival"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/worlds"
	"github.com/tabane/tabane/internal/sim"
)

// SprayOptions configure Spray.
type SprayOptions struct {
	// Seed and First identify the drawn networks, of which there are Count.
	Seed         uint64
	First, Count int
	// Pairs has them drawn by worlds.Pair.
	Pairs bool
	// Packets bounds what all paths together can carry in a download.
	Packets int
	// Jobs is the number of networks simulated in parallel. Default: the number of processors.
	Jobs int
}

// Sprayed is what downloads of a drawn network brought, in bytes.
type Sprayed struct {
	World worlds.World
	// Alone are TCP over each path alone, Again is the first path with other random numbers,
	// AloneNext a download over it after another one, and AloneLast one after two others.
	Alone                       []float64
	Again, AloneNext, AloneLast float64
	// First is a sprayed download to a network that nothing is known of, Next the one after it, and
	// Last a third one.
	First, Next, Last float64
	// Datagrams is the one after First if its acknowledgments cannot be read, as those of QUIC, and
	// NextDatagrams another one after it.
	Datagrams, NextDatagrams float64
	// Fixed and NextFixed are the same of a sender that does not adapt to reordering, AloneFixed and
	// AloneNextFixed over the first path.
	Fixed, NextFixed, AloneFixed, AloneNextFixed float64
	// Both are two downloads at once together, after another one, and BothDatagrams two whose
	// acknowledgments cannot be read; AloneBoth over the first path.
	Both, BothDatagrams, AloneBoth float64
}

// Ratio is a row of a table: what downloads bring in a network, compared with others.
type Ratio[T any] struct {
	Title string
	Of    func(network T) float64
}

// SprayedRatios are the rows of a table.
func SprayedRatios() []Ratio[Sprayed] {
	return []Ratio[Sprayed]{
		{"the first path again / the first path", func(s Sprayed) float64 { return ratio(s.Again, s.Alone[0]) }},
		{"TCP, the first download / the first path", func(s Sprayed) float64 { return ratio(s.First, s.Alone[0]) }},
		{"TCP, the next one / the first path", func(s Sprayed) float64 { return ratio(s.Next, s.AloneNext) }},
		{"datagrams, the first download / the first path", func(s Sprayed) float64 { return ratio(s.Datagrams, s.AloneNext) }},
		{"datagrams, the next one / the first path", func(s Sprayed) float64 { return ratio(s.NextDatagrams, s.AloneLast) }},
		{"fixed threshold, first download / the first path", func(s Sprayed) float64 { return ratio(s.Fixed, s.AloneFixed) }},
		{"fixed threshold, next one / the first path", func(s Sprayed) float64 { return ratio(s.NextFixed, s.AloneNextFixed) }},
		{"TCP, two at once / the first path", func(s Sprayed) float64 { return ratio(s.Both, s.AloneBoth) }},
		{"datagrams, two at once / the first path", func(s Sprayed) float64 { return ratio(s.BothDatagrams, s.AloneBoth) }},
		{"TCP, the first one / the best path", func(s Sprayed) float64 { return ratio(s.First, slices.Max(s.Alone)) }},
		{"TCP, the next one / the best path", func(s Sprayed) float64 { return ratio(s.Next, slices.Max(s.Alone)) }},
		{"TCP, the third one / the best path", func(s Sprayed) float64 { return ratio(s.Last, slices.Max(s.Alone)) }},
		{"datagrams, the next one / the best path", func(s Sprayed) float64 { return ratio(s.NextDatagrams, slices.Max(s.Alone)) }},
		{"TCP, the first one / the sum of all paths", func(s Sprayed) float64 { return ratio(s.First, s.sum()) }},
		{"TCP, the next one / the sum of all paths", func(s Sprayed) float64 { return ratio(s.Next, s.sum()) }},
		{"TCP, two at once / the sum of all paths", func(s Sprayed) float64 { return ratio(s.Both, s.sum()) }},
		{"datagrams, two at once / the sum of all paths", func(s Sprayed) float64 { return ratio(s.BothDatagrams, s.sum()) }},
		{"TCP, the third one / the sum of all paths", func(s Sprayed) float64 { return ratio(s.Last, s.sum()) }},
		{"datagrams, the next one / the sum of all paths", func(s Sprayed) float64 { return ratio(s.NextDatagrams, s.sum()) }},
	}
}

// sum is what all paths alone bring.
func (s *Sprayed) sum() (all float64) {
	for _, v := range s.Alone {
		all += v
	}
	return all
}

// ratio is 1 where neither download brought anything: the network failed then.
func ratio(a, b float64) float64 {
	if a == b {
		return 1
	}
	return a / b
}

// sending is how a download is sent.
type sending uint8

const (
	stream sending = iota
	// unread: its acknowledgments cannot be read, as those of QUIC.
	unread
	// fixed: nor can these, and its sender does not adapt to reordering. A packet counts as lost once
	// three later ones have arrived (RFC 9002, section 6.1.1), and no reduction is undone.
	fixed
)

// apart is the time between a download and the next one.
const apart = time.Second

// Spray simulates downloads that a server sends over several egress paths by package arrival.
func Spray(ctx context.Context, o SprayOptions) ([]Sprayed, error) {
	list := make([]Sprayed, o.Count)
	err := parallel(ctx, o.Jobs, o.Count, func(ctx context.Context, i int) (err error) {
		list[i], err = sprayWorld(ctx, o.draw(i))
		return err
	})
	return list, err
}

// draw draws network i of those that are simulated.
func (o SprayOptions) draw(i int) worlds.World {
	d := worlds.Options{Kind: worlds.EPE, Seed: o.Seed, Number: o.First + i, Packets: o.Packets}
	if o.Pairs {
		return worlds.Pair(d)
	}
	return worlds.Draw(d)
}

// sprayWorld simulates one network.
func sprayWorld(ctx context.Context, w worlds.World) (Sprayed, error) {
	w.Shared = linkmodel.Profile{}
	w.Paths = w.Paths[:min(len(w.Paths), arrival.MaxPaths)]
	r := Sprayed{World: w}
	all := make([]int, len(w.Paths))
	for i := range all {
		all[i] = i
		list, err := download(ctx, w, []int{i}, 0, []sending{stream}, 1)
		if err != nil {
			return r, err
		}
		r.Alone = append(r.Alone, list[0])
	}
	for _, d := range []struct {
		to    *float64
		paths []int
		seed  uint64
		sent  []sending
		last  int
	}{
		{&r.Again, all[:1], otherSeed, []sending{stream}, 1},
		{&r.AloneNext, all[:1], 0, []sending{stream, stream}, 1},
		{&r.AloneLast, all[:1], 0, []sending{stream, stream, stream}, 1},
		{&r.First, all, 0, []sending{stream}, 1},
		{&r.Next, all, 0, []sending{stream, stream}, 1},
		{&r.Last, all, 0, []sending{stream, stream, stream}, 1},
		{&r.Datagrams, all, 0, []sending{stream, unread}, 1},
		{&r.NextDatagrams, all, 0, []sending{stream, unread, unread}, 1},
		{&r.AloneFixed, all[:1], 0, []sending{stream, fixed}, 1},
		{&r.AloneNextFixed, all[:1], 0, []sending{stream, fixed, fixed}, 1},
		{&r.Fixed, all, 0, []sending{stream, fixed}, 1},
		{&r.NextFixed, all, 0, []sending{stream, fixed, fixed}, 1},
		{&r.AloneBoth, all[:1], 0, []sending{stream, stream, stream}, 2},
		{&r.Both, all, 0, []sending{stream, stream, stream}, 2},
		{&r.BothDatagrams, all, 0, []sending{stream, unread, unread}, 2},
	} {
		list, err := download(ctx, w, d.paths, d.seed, d.sent, d.last)
		if err != nil {
			return r, err
		}
		for _, bytes := range list[len(list)-d.last:] {
			*d.to += bytes
		}
	}
	return r, nil
}

// download simulates a download for each element of sent over some of the paths, one after the
// other but for the last ones, which are at once, and returns what they brought. What happens in the
// network happens in the last ones.
func download(ctx context.Context, w worlds.World, paths []int, seed uint64, sent []sending, last int) ([]float64, error) {
	before := len(sent) - last
	begin := time.Duration(before) * (w.Lasts + apart)
	c, ways := sprayLinks(w, paths, begin)
	c.Seed, c.Duration = w.SimulatorSeed()+seed, begin+w.Lasts
	network := &sim.Spray{Network: w.Name()}
	for k, how := range sent {
		start := time.Duration(min(k, before)) * (w.Lasts + apart)
		x := sprayDownload(fmt.Sprint("download", k+1), start, ways)
		if k < before {
			x.Stop = start + w.Lasts
		}
		if len(paths) > 1 {
			x.Spray, x.Unread = network, how != stream
		}
		x.RACK = how != fixed
		c.Connections = append(c.Connections, x)
	}
	result, err := simulate(ctx, w, c)
	if err != nil {
		return nil, err
	}
	var list []float64
	for _, x := range result.Connections {
		list = append(list, float64(x.Delivered))
	}
	return list, nil
}

// sprayLinks returns the links of some of the paths, and the paths over them. What happens in the
// network happens after begin.
func sprayLinks(w worlds.World, paths []int, begin time.Duration) (c sim.Config, ways []sim.Path) {
	// What clients send takes the route that their provider has, whatever path content takes.
	back := w.Paths[0].Backward
	back.Loss = linkmodel.Loss{}
	c.Links = append(c.Links, sim.Link{Name: "back", Profile: back})
	for _, i := range paths {
		ways = append(ways, sim.Path{Out: []int{len(c.Links)}, Back: []int{0}})
		for _, step := range w.Paths[i].Schedule {
			if step.Direction.Has(linkmodel.Forward) {
				c.Changes = append(c.Changes, sim.Change{At: begin + step.At, Link: len(c.Links), Change: step.Change})
			}
		}
		c.Links = append(c.Links, sim.Link{Name: fmt.Sprint("path", i+1), Profile: w.Paths[i].Forward})
	}
	slices.SortStableFunc(c.Changes, func(a, b sim.Change) int { return cmp.Compare(a.At, b.At) })
	return c, ways
}

// sprayDownload returns a download over some paths.
func sprayDownload(name string, start time.Duration, ways []sim.Path) sim.Connection {
	return sim.Connection{
		Name: name, Start: start, Paths: ways, DelayedACK: true, QuickACKs: quickACKs, RACK: true, HyStart: true, Handshake: true,
		ReceiveBuffer: mostReceive, InitialReceive: initialReceive,
	}
}

// simulate simulates downloads of a network.
func simulate(ctx context.Context, w worlds.World, c sim.Config) (r sim.Result, err error) {
	s, err := sim.New(c)
	if err == nil {
		r, err = s.Run(ctx)
	}
	if err != nil {
		return r, fmt.Errorf("simulate network %q: %w", w.Name(), err)
	}
	return r, nil
}
