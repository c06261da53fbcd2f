package daemon

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/netns"
)

const (
	// examineEvery is the longest time until a change of the host without an event is noticed.
	examineEvery = 5 * time.Second
	// examinePause is the least time between two examinations of the host, whose interfaces may
	// come and go all the time.
	examinePause = 500 * time.Millisecond
)

// examineSoon has the conditions of the host examined.
func (l *Loop) examineSoon() {
	select {
	case l.hostChanged <- struct{}{}:
	default:
	}
}

// followHost examines the conditions beside the loop, in its network namespace, until stop is
// called.
func (l *Loop) followHost(ctx context.Context, c Conditioned) (stop func(), err error) {
	namespace, err := netns.Current()
	if err != nil {
		return func() {}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var background sync.WaitGroup
	background.Go(func() {
		contain.Repeat(ctx, contain.Reconcile, l.options.Log, func() { l.examineHost(ctx, c, namespace.Do) })
	})
	return func() {
		cancel()
		background.Wait()
		_ = namespace.Close() // it was opened for reading
	}, nil
}

// examineHost examines the conditions until ctx ends: in turn, and after events. enter runs a
// function in the network namespace of the daemon.
func (l *Loop) examineHost(ctx context.Context, c Conditioned, enter func(func() error) error) {
	every := time.NewTicker(examineEvery)
	defer every.Stop()
	unknown := ""
	for {
		var list []condition.Condition
		if !l.Do(ctx, func() { list = c.Conditions() }) {
			return
		}
		var x condition.Examination
		if err := enter(func() error { x = condition.Examine(list); return nil }); err != nil {
			x.Unknown = append(x.Unknown, err)
		}
		if !l.Do(ctx, func() { l.examined(x) }) {
			return
		}
		text := ""
		if err := errors.Join(x.Unknown...); err != nil {
			text = err.Error()
		}
		if text != unknown && text != "" {
			l.options.Log.Warn("host is not examined completely", "err", text)
		}
		unknown = text
		select {
		case <-ctx.Done():
			return
		case <-time.After(examinePause):
		}
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		case <-l.hostChanged:
		}
	}
}

// examined applies the result of an examination.
func (l *Loop) examined(x condition.Examination) {
	for _, name := range x.Restored {
		l.options.Log.Warn("another program changed the host, restored it", "condition", name)
	}
	for _, p := range x.Problems {
		if !slices.Contains(l.problems, p) {
			l.options.Log.Warn("host does not provide what is needed", "problem", p.Text, "remedy", p.Remedy)
		}
	}
	for _, p := range l.problems {
		if !slices.Contains(x.Problems, p) {
			l.options.Log.Info("host provides again what is needed", "problem", p.Text)
		}
	}
	l.problems = x.Problems
}

// Problems returns the conditions of the host that do not hold. The loop calls it.
func (l *Loop) Problems() []health.Problem { return l.problems }
