package flows

import (
	"io"
	"log/slog"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestFollow: an interface that is new or was made again gets counters, and one that is gone is
// released.
func TestFollow(t *testing.T) {
	ns := namespace(t)
	made := func(name string) {
		inside(t, ns, func() error {
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-far"})
		})
	}
	made("one")
	list := []string{"one"}
	var w *Watcher
	inside(t, ns, func() (err error) {
		w, err = New(Options{
			Interfaces: []string{"one"}, List: func() ([]string, error) { return list, nil }, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		})
		return err
	})
	defer w.Close()
	first := w.attached.Index("one")
	inside(t, ns, func() error {
		l, err := netlink.LinkByName("one")
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
	w.follow()
	if got := w.attached.Index("one"); got != 0 {
		t.Errorf("the interface that is gone has index %d", got)
	}
	made("two")
	made("one")
	list = append(list, "two")
	w.follow()
	for _, name := range list {
		i := w.attached.Index(name)
		if i == 0 || w.t.interfaces[uint32(i)] != name || name == "one" && i == first {
			t.Errorf("%s has index %d, before %d; interfaces %v", name, i, first, w.t.interfaces)
		}
	}
	inside(t, ns, func() error {
		l, err := netlink.LinkByName("two")
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
	list = []string{"one"}
	w.follow()
	if got := w.attached.Attached(); !slices.Equal(got, list) {
		t.Errorf("counted on %v, want %v", got, list)
	}
}
