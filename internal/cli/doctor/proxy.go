package doctor

import (
	"fmt"

	"github.com/tabane/tabane/internal/proxy/relay"
)

// fewConnections is the number of connections of a proxy below which its limit is reported as low.
const fewConnections = 20_000

// descriptors checks how many connections a proxy can have.
func descriptors(limit func() (uint64, error)) Finding {
	f := Finding{Check: "file descriptors", State: OK}
	n, err := limit()
	if err != nil {
		f.unknown(err)
		return f
	}
	most := relay.ConnectionsWithin(n)
	f.Meaning = fmt.Sprintf("the limit of %d is enough for %d connections of a proxy", n, most)
	if most < fewConnections {
		f.State, f.Remedy = Limited, "ulimit -Hn 1048576 before tabane proxy, or LimitNOFILE=1048576 in its unit; or several processes on one listener (reuse_port)"
	}
	return f
}
