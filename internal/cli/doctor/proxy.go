package doctor

import (
	"fmt"

	"github.com/tabane/tabane/internal/mptcp/ccbpf"
	"github.com/tabane/tabane/internal/proxy"
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

// bounded checks that a proxy's MPTCP connections bound the data that a line has not sent yet.
func bounded(control func(name string) (host string, may bool)) Finding {
	f := Finding{Check: "congestion control of proxies", State: OK}
	host, may := control(proxy.Bounded)
	switch {
	case host == "":
		f.State, f.Meaning = Unknown, "no MPTCP connection can be opened"
	case host != ccbpf.Cubic:
		f.Meaning = "tabane proxy uses that of the host, " + host
	case may:
		f.Meaning = "tabane proxy uses " + proxy.Bounded
	default:
		f.State, f.Remedy = Limited, "tabane cc load cubic, then tabane reload proxy"
		f.Meaning = proxy.Bounded + " is not loaded: over two lines, one of which loses packets, a connection of tabane proxy can get less than the better one brings"
	}
	return f
}
