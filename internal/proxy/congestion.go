package proxy

import (
	"fmt"

	"github.com/tabane/tabane/internal/mptcp/ccbpf"
	"github.com/tabane/tabane/internal/proxy/relay"
)

// Bounded is the kernel's Cubic with bounded unsent data. Without the bound, MPTCP's scheduler
// gives a line that loses packets more than it delivers in the time in which the others fill the
// buffers, and a connection over both lines gets less than the better one alone brings.
const Bounded = ccbpf.DefaultPrefix + ccbpf.Cubic

// congestion returns the congestion control of MPTCP connections, and that of the host; "" if it
// has no MPTCP.
func (c *Config) congestion() (name, host string, err error) {
	host, may := relay.Congestion(Bounded)
	switch {
	case host == "":
		return "", "", nil
	case c.Congestion != "":
		if _, may = relay.Congestion(c.Congestion); !may {
			return "", host, fmt.Errorf("use congestion control %q: this kernel has none of that name, or does not permit it; see tabane cc status", c.Congestion)
		}
		return c.Congestion, host, nil
	case may && host == ccbpf.Cubic:
		return Bounded, host, nil
	default:
		return host, host, nil
	}
}
