package labrun

import (
	"context"
	"fmt"

	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/result"
)

// restartGateways restarts the lab's gateways as a cell needs them, so that no run begins with what an
// earlier one has measured.
func (r *runner) restartGateways(ctx context.Context, l *lab.Lab, k result.CellKey) error {
	sections := map[string]*gateway.Config{}
	for _, node := range r.Spec.Gateways() {
		sections[node] = r.Spec.GatewayIn(k, node)
	}
	if len(sections) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("gateways are not ready after %s", patience))
	defer cancel()
	return l.RestartGateways(ctx, sections)
}
