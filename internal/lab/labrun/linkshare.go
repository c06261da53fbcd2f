package labrun

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab"
)

// linkCounts are what links carried in either direction when they were read, in bytes.
type linkCounts struct {
	links []string
	bytes [][2]uint64
}

// linkBytes reads the counters of links at their first ends.
func linkBytes(l *lab.Lab, links []string) (linkCounts, error) {
	c := linkCounts{links: links}
	for _, name := range links {
		end := l.Spec().Links[name].Ends[0]
		n, err := l.Node(end.Node)
		if err != nil {
			return c, err
		}
		err = n.Do(func() error {
			link, err := netlink.LinkByName(end.Interface)
			if err != nil {
				return err
			}
			s := link.Attrs().Statistics
			c.bytes = append(c.bytes, [2]uint64{s.TxBytes, s.RxBytes})
			return nil
		})
		if err != nil {
			return c, fmt.Errorf("read what link %q carried: %w", name, err)
		}
	}
	return c, nil
}

// since returns what each link carried since the counters were read, in the direction of the data.
func (c linkCounts) since(l *lab.Lab) (map[string]uint64, error) {
	now, err := linkBytes(l, c.links)
	if err != nil {
		return nil, err
	}
	carried := map[string]uint64{}
	for i, name := range c.links {
		for way, n := range now.bytes[i] {
			if before := c.bytes[i][way]; before <= n { // otherwise the interface was made again
				n -= before
			}
			carried[name] = max(carried[name], n)
		}
	}
	return carried, nil
}

// elsewhere returns an error if less than half of the data was on a transport's links, which names
// the link that carried most: the network leads the content elsewhere.
func elsewhere(data uint64, links []string, carried map[string]uint64) error {
	on, most := uint64(0), ""
	for name, n := range carried {
		switch {
		case slices.Contains(links, name):
			on += n
		case most == "" || n > carried[most] || n == carried[most] && name < most:
			most = name
		}
	}
	if len(links) == 0 || 2*on >= data {
		return nil
	}
	why := ""
	if most != "" && carried[most] > on {
		why = fmt.Sprintf("; link %s carried %v: check the routes, and the address of the server, which is by default that on its first link", most, unit.Size(carried[most]))
	}
	return fmt.Errorf("%v of %v were on the links of the transport (%s)%s", unit.Size(on), unit.Size(data), strings.Join(links, ", "), why)
}

// sharedLinks returns the links of a transport with several.
func sharedLinks(t *scenario.Transport) []string {
	if !t.MPTCP && t.Delivery.IsZero() || len(t.Links) < 2 {
		return nil
	}
	return t.Links
}

// putShare adds the share of the first of several links.
func putShare(links []string, carried map[string]uint64, run *result.Run) {
	all := uint64(0)
	for _, name := range links {
		all += carried[name]
	}
	if all > 0 {
		run.Metrics[result.FirstLink] = float64(carried[links[0]]) / float64(all)
	}
}
