package condition

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/kernel/netns"
)

// trackedMost is the part of the table of connection tracking, in percent, from which on it counts
// as full. When it is, the kernel drops packets of new connections, also of those of this host's
// own sockets, such as to a daemon's status.
const trackedMost = 90

// Tracked is that connection tracking has room for new connections.
func Tracked() Condition { return tracked(netns.ReadSysctl) }

func tracked(read reader) Condition {
	return Condition{
		Name: "connection tracking", Good: "its table has room for new connections",
		Examine: func() ([]health.Problem, error) {
			var values [2]uint64
			for i, key := range []string{"net.netfilter.nf_conntrack_count", "net.netfilter.nf_conntrack_max"} {
				text, err := read(key)
				if errors.Is(err, fs.ErrNotExist) {
					return nil, nil // the kernel tracks none
				}
				if err == nil {
					values[i], err = strconv.ParseUint(text, 10, 32)
				}
				if err != nil {
					return nil, fmt.Errorf("examine connection tracking: %w", err)
				}
			}
			count, most := values[0], values[1]
			if most == 0 || count < most*trackedMost/100 { // 0: without limit
				return nil, nil
			}
			return []health.Problem{{
				// The same text while the number changes, so that it is logged once.
				Text:   fmt.Sprintf("%d %% or more of the %d connections that can be tracked are; further ones are dropped when the table is full", trackedMost, most),
				Remedy: fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d", 2*most),
			}}, nil
		},
	}
}
