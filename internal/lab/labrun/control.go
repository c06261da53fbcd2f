package labrun

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/mptcp/cc"
	"github.com/tabane/tabane/internal/mptcp/ccbpf"
)

// control returns the kernel's name of the congestion control that the settings choose, and whether
// a run loads it itself: where the kernel lacks it, or the settings say whether it paces.
func (o offers) control(s scenario.Settings) (name string, own bool) {
	name = cc.InKernel(s.Congestion)
	ours := slices.Contains(ccbpf.Names(), s.Congestion)
	if !ours || s.Pace == nil && s.Lowat == nil && slices.Contains(o.congestion, name) {
		return name, false
	}
	return controlOptions(s).Prefix + s.Congestion, true
}

// controlOptions are those of a control of the run's own. Its name has a prefix for its options and
// this process: names are those of the whole host.
func controlOptions(s scenario.Settings) ccbpf.Options {
	o := ccbpf.Defaults(s.Congestion)
	if s.Pace != nil {
		o.Pace = *s.Pace
	}
	o.Lowat = s.Lowat != nil && *s.Lowat
	kind := map[bool]string{true: "p", false: "b"}[o.Pace]
	if o.Lowat {
		kind += "l"
	}
	o.Prefix = kind + strconv.FormatInt(int64(os.Getpid()), 36) + "_"
	return o
}

// controls are the congestion controls that a run has loaded, by their names in the kernel. They go
// with it, even if it is killed.
type controls map[string]io.Closer

// load loads the controls that the connections of the jobs choose.
func (c controls) load(jobs [][]job, o offers) error {
	for _, j := range slices.Concat(jobs...) {
		for _, x := range j.cell.Connections {
			name, own := o.control(x.Settings)
			if _, loaded := c[name]; loaded || !own {
				continue
			}
			l, err := ccbpf.Attach(x.Settings.Congestion, controlOptions(x.Settings))
			if err != nil {
				return fmt.Errorf("load congestion control %q: %w", x.Settings.Congestion, err)
			}
			c[name] = l
		}
	}
	return nil
}

func (c controls) close() error {
	var errs []error
	for _, l := range c {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
