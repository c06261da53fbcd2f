package doctor

import (
	"errors"
	"slices"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/role"
)

// startable returns which daemons can run on this host, and needs those that are to.
func startable(daemons []string) []Finding {
	lacks := map[role.Need]error{}
	var list []Finding
	for _, d := range role.All() {
		if !d.Startable() {
			continue
		}
		f := Finding{Check: "tabane " + d.Name, State: OK, Needed: slices.Contains(daemons, d.Name), Meaning: "can run on this host", Users: []string{d.Name}}
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
