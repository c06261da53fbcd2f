package labrun

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/scenario"
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

// sharedLinks returns the links of a transport with several.
func sharedLinks(t *scenario.Transport) []string {
	if !t.MPTCP || len(t.Links) < 2 {
		return nil
	}
	return t.Links
}

// put adds the share of the first link since the counters were read, in the direction of the data.
func (c linkCounts) put(l *lab.Lab, run *result.Run) error {
	if len(c.links) == 0 {
		return nil
	}
	now, err := linkBytes(l, c.links)
	if err != nil {
		return err
	}
	first, all := uint64(0), uint64(0)
	for i := range c.links {
		n := max(now.bytes[i][0]-c.bytes[i][0], now.bytes[i][1]-c.bytes[i][1])
		if all += n; i == 0 {
			first = n
		}
	}
	if all > 0 {
		run.Metrics[result.FirstLink] = float64(first) / float64(all)
	}
	return nil
}
