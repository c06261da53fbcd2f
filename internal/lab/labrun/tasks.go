package labrun

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// tasks run until they are stopped, or end before.
type tasks struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	all    sync.WaitGroup
	mu     sync.Mutex
	errs   []error
}

func newTasks(ctx context.Context) *tasks {
	ctx, cancel := context.WithCancelCause(ctx)
	return &tasks{ctx: ctx, cancel: cancel}
}

// start runs a task in the background.
func (t *tasks) start(task func(context.Context) error) {
	t.all.Go(func() {
		err := task(t.ctx)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.errs = append(t.errs, err)
	})
}

// await runs a task in the background and returns when it has called begun or has ended.
func (t *tasks) await(task func(ctx context.Context, begun func()) error) {
	done := make(chan struct{})
	begun := sync.OnceFunc(func() { close(done) })
	t.start(func(ctx context.Context) error {
		defer begun()
		return task(ctx, begun)
	})
	<-done
}

// wait waits for the tasks and returns their errors.
func (t *tasks) wait() error {
	t.all.Wait()
	return errors.Join(t.errs...)
}

// stop cancels the tasks with a cause, waits for them, and returns their errors. Only the first
// cause counts.
func (t *tasks) stop(cause error) error {
	t.cancel(cause)
	return t.wait()
}

// faults returns the errors of stopped tasks but for the cause of their end.
func (t *tasks) faults() error {
	return errors.Join(slices.DeleteFunc(slices.Clone(t.errs), func(err error) bool { return errors.Is(err, context.Cause(t.ctx)) })...)
}
