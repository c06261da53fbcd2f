package labrun

import (
	"context"
	"fmt"
	"time"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/lab"
)

// gatewayPatience is how long gateways may take to become ready: the kernel verifies the programs
// of the open plane, which takes seconds on a busy machine.
const gatewayPatience = time.Minute

// restartGateways restarts the lab's gateways as a cell needs them, so that no run begins with what
// an earlier one has measured, and lets them measure. Where the cell's transport uses none, it
// stops them.
func (r *runner) restartGateways(ctx context.Context, l *lab.Lab, k result.CellKey) error {
	if routes := r.Spec.RoutesAround(k); len(routes) > 0 {
		return l.StopGateways(ctx, routes)
	}
	sections := map[string]*gateway.Config{}
	for _, node := range r.Spec.Gateways() {
		sections[node] = r.Spec.GatewayIn(k, node)
	}
	if len(sections) == 0 {
		return nil
	}
	ready, cancel := context.WithTimeoutCause(ctx, gatewayPatience, fmt.Errorf("gateways are not ready after %s", gatewayPatience))
	defer cancel()
	if err := l.RestartGateways(ready, sections); err != nil {
		return err
	}
	return r.warmUp(ctx, k)
}

// warmUp waits until the gateways of a cell have measured their paths.
func (r *runner) warmUp(ctx context.Context, k result.CellKey) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(warmUpOf(r.Spec, k)):
		return nil
	}
}

// warmUpOf returns how long gateways measure before a run. By packets, the first second of a run
// does more than a minute before it, except on slow lines, where a probe each second is all there
// is. A minute of probes is much for a lab: 20 of them have 0.7 of an estimate with a weight of
// 1/16.
func warmUpOf(spec *scenario.Spec, k result.CellKey) time.Duration {
	g := spec.Experiment.Transports[k.Transport].Gateway
	switch {
	case g == nil:
		return 0
	case g.Probes:
		return 20 * time.Second
	case isSlow(spec.SumRates(k)):
		return g.WarmUp()
	}
	return 2 * time.Second
}
