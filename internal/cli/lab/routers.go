package lab

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/lab"
)

// parseRouters parses --routers: embedded or frr, or both, separated by a comma, if several is set.
func parseRouters(given string, several bool) ([]string, error) {
	list := strings.Split(given, ",")
	for i, r := range list {
		if r != lab.RoutersEmbedded && r != lab.RoutersFRR || slices.Index(list, r) < i || i > 0 && !several {
			want := lab.RoutersEmbedded + " or " + lab.RoutersFRR
			if several {
				want += ", or embedded,frr for both"
			}
			return nil, fmt.Errorf("--routers must be %s, got %q", want, given)
		}
	}
	return list, nil
}

// needRouters returns a failure if the programs of the routers are not installed.
func needRouters(what string, routers ...string) error {
	if !slices.Contains(routers, lab.RoutersFRR) {
		return nil
	}
	if err := lab.FRRInstalled(); err != nil {
		return &cli.Failure{What: what + " with routers", Name: lab.RoutersFRR, Why: err, Do: "or leave --routers out"}
	}
	return nil
}
