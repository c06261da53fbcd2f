package lab

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/tabane/tabane/internal/cli"
)

// unread writes the progress of a command that has to undo what it made.
type unread struct {
	io.Writer
	end context.CancelFunc
}

// untilUnread returns a context that ends also when the terminal is gone, or when nobody reads any
// more what is written to w, as after "| head": without it that would end the process where it is,
// until stop is called.
func untilUnread(ctx context.Context, w io.Writer) (_ context.Context, progress io.Writer, stop context.CancelFunc) {
	ctx, hungUp := cli.UntilHangup(ctx)
	ctx, cancel := context.WithCancel(ctx)
	// A signal that is not ignored has its default effect in the processes that are started.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	return ctx, &unread{w, cancel}, func() {
		signal.Stop(pipe)
		cancel()
		hungUp()
	}
}

func (u *unread) Write(b []byte) (int, error) {
	n, err := u.Writer.Write(b)
	if err != nil {
		u.end()
	}
	return n, err
}
