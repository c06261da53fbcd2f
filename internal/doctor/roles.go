package doctor

import (
	"errors"
	"fmt"

	"github.com/tabane/tabane/internal/feature"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/role"
)

// daemons returns which daemons can run on this host.
func daemons() []Finding {
	lacks := map[role.Need]error{}
	var list []Finding
	for _, d := range role.All() {
		if !d.Startable() {
			continue
		}
		f := Finding{Check: "tabane " + d.Name, State: OK, Meaning: "can run on this host"}
		for _, n := range d.Needs {
			err, asked := lacks[n]
			if !asked {
				err = Provides(n)
				lacks[n] = err
			}
			if err == nil {
				continue
			}
			var missing *feature.Error
			switch {
			case errors.Is(err, ErrPrivilege):
				f.State, f.Meaning, f.Remedy = Missing, err.Error(), "run it as root, or grant the capability"
			case errors.As(err, &missing):
				f.State, f.Meaning, f.Remedy = Missing, missing.Cause(), missing.Remedy
			default:
				f.State, f.Meaning = Unknown, err.Error()
			}
			break
		}
		if f.State == Missing && f.Remedy == "" {
			f.Remedy = "see the checks above"
		}
		list = append(list, f)
	}
	return list
}

// clientLimits checks whether clients on this host open subflows to advertised addresses:
// add_addr_accepted is 0 by default, and then a connection silently stays on its first subflow.
func clientLimits() Finding {
	f := Finding{Check: "MPTCP client", State: OK}
	limits, err := mptcpLimits()
	if err != nil {
		f.check(err)
		return f
	}
	f.Meaning = fmt.Sprintf("as a client, opens subflows to %d advertised addresses, at most %d subflows", limits.AddAddrAccepted, limits.Subflows)
	if limits.AddAddrAccepted == 0 || limits.Subflows == 0 {
		f.State, f.Remedy = Limited, "ip mptcp limits set subflows 8 add_addr_accepted 8"
		f.Meaning += ": a connection from here has one subflow"
	}
	return f
}

func mptcpLimits() (mptcp.Limits, error) {
	c, err := mptcp.Dial()
	if err != nil {
		return mptcp.Limits{}, err
	}
	limits, err := c.Limits()
	return limits, errors.Join(err, c.Close())
}
