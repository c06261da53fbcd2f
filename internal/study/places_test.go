package study

import (
	"sync"
	"sync/atomic"
	"testing"
)

// TestShareIsReserved: requests of one network at one moment get no more than its share, and a
// place whose session cannot be stored is free again.
func TestShareIsReserved(t *testing.T) {
	p := newPlaces(20, 0)
	network := p.network("192.0.2.1:99")
	var reserved atomic.Int32
	var wait sync.WaitGroup
	for range 100 {
		wait.Go(func() {
			if p.reserve(newID(), network, 0) {
				reserved.Add(1)
			}
		})
	}
	wait.Wait()
	if got := int(reserved.Load()); got != p.share {
		t.Errorf("%d places, want %d", got, p.share)
	}
	for id := range p.waiting {
		p.settle(id)
		break
	}
	if !p.reserve(newID(), network, 0) || p.reserve(newID(), network, 0) {
		t.Error("a place that was given back is not free once")
	}
}
