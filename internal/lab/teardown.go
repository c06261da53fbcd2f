package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns"
)

const (
	// grace is how long processes have to exit after SIGTERM, patience how long after SIGKILL.
	grace    = 3 * time.Second
	patience = 5 * time.Second
	// look is the polling interval.
	look = 10 * time.Millisecond
)

// remove tears down a lab and removes its directory. The caller holds the lab's lock.
func remove(ctx context.Context, name string, s *state) error {
	if err := teardown(ctx, s); err != nil {
		return err
	}
	return os.RemoveAll(dirOf(name))
}

// teardown ends the processes and removes the namespaces in s that still exist. When ctx ends,
// processes are killed without a grace period; everything else is still done.
func teardown(ctx context.Context, s *state) error {
	var spaces []*space
	defer func() {
		for _, sp := range spaces {
			sp.close()
		}
	}()
	var errs []error
	for _, name := range s.Namespaces {
		sp, err := openSpace(name)
		switch {
		case err == nil:
			spaces = append(spaces, sp)
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EINVAL):
			errs = append(errs, err)
		}
	}
	recorded := s.Processes
	boot, err := bootID()
	errs = append(errs, err)
	if s.Boot != boot {
		recorded = nil
	}
	errs = append(errs, end(ctx, recorded, spaces))
	for _, p := range recorded {
		errs = append(errs, removeFRRCrashDir(p))
	}
	for _, name := range s.Namespaces {
		if err := netns.Delete(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	// A process that opened the namespace before its name was deleted may have entered only
	// now. The open namespaces keep the inode numbers from being reused.
	errs = append(errs, end(ctx, nil, spaces))
	return errors.Join(errs...)
}

// end terminates the recorded processes and all others in the namespaces, which daemons or users
// have started.
func end(ctx context.Context, recorded []process, spaces []*space) error {
	asked := map[process]bool{}
	var killing bool
	deadline := time.Now().Add(grace)
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		left, err := processesIn(spaces)
		if err != nil {
			return err
		}
		for _, p := range recorded {
			if p.alive() {
				left = append(left, process{PID: p.PID, Start: p.Start})
			}
		}
		if len(left) == 0 {
			return nil
		}
		if !killing && (ctx.Err() != nil || time.Now().After(deadline)) {
			killing, deadline = true, time.Now().Add(patience)
		}
		if killing && time.Now().After(deadline) {
			return fmt.Errorf("end process %d: it is still there %s after SIGKILL", left[0].PID, patience)
		}
		for _, p := range left {
			sig := syscall.SIGTERM
			if killing {
				sig = syscall.SIGKILL
			} else if asked[p] {
				continue
			}
			asked[p] = true
			if err := p.signal(sig); err != nil {
				return err
			}
		}
		<-tick.C
	}
}
