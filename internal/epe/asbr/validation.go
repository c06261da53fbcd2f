package asbr

import (
	"cmp"
	"context"
	"fmt"

	"github.com/tabane/tabane/internal/bgp/policy"
	"github.com/tabane/tabane/internal/bgp/rtr"
)

// validation is a running client of the RPKI caches.
type validation struct {
	client *rtr.Client
	stop   context.CancelFunc
}

// startValidation replaces the client of the RPKI caches; without caches, there is none. The VRPs
// of the previous one are used until the new one has some. It is called in the daemon's loop, or
// before it.
func (a *ASBR) startValidation(conf *RPKI) {
	if a.rpki != nil {
		a.rpki.stop()
		a.rpki = nil
	}
	if conf == nil {
		a.vrps = nil
		return
	}
	v := &validation{}
	client, err := rtr.New(rtr.Options{Config: conf.Config, Log: a.log, Changed: func(vrps *policy.VRPs) { a.validate(v, vrps) }})
	if err != nil {
		panic("BUG: " + err.Error()) // the configuration was checked
	}
	ctx, cancel := context.WithCancel(a.running)
	v.client, v.stop, a.rpki = client, cancel, v
	a.validating.Go(func() { _ = client.Run(ctx) }) // its end is that of ctx
}

// validate applies other VRPs to the routes of the egress peers.
func (a *ASBR) validate(from *validation, vrps *policy.VRPs) {
	current := false
	a.daemon.Do(a.running, func() {
		if current = a.rpki == from; current {
			a.vrps = vrps
		}
	})
	if current {
		a.setImports()
	}
}

// rpkiProblems are why the RPKI caches do less than they are configured for.
func rpkiProblems(caches []rtr.CacheStatus) (problems []string) {
	used := false
	for _, c := range caches {
		used = used || c.Used
		switch {
		case c.Connected:
		case c.Used:
			problems = append(problems, fmt.Sprintf("rpki cache %s is not connected (%s), and its data is %ds old", c.Name, c.Reason, c.Age))
		default:
			problems = append(problems, fmt.Sprintf("rpki cache %s is not connected (%s)", c.Name, cmp.Or(c.Reason, "not yet")))
		}
	}
	if !used {
		problems = append(problems, "no rpki cache has data, so that routes are not validated")
	}
	return problems
}
