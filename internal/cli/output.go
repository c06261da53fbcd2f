package cli

import (
	"errors"
	"io"
	"os"
	"sync"

	"github.com/tabane/tabane/internal/kernel/statefile"
)

// output is standard output. The first error of a write is that of all following ones, so that a
// command whose result was lost, as on a full disk, fails whatever its verb does about the error. It
// is safe for concurrent use.
type output struct {
	io.Writer
	mu   sync.Mutex
	lost error
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lost != nil {
		return 0, o.lost
	}
	n, err := o.Writer.Write(b)
	o.lost = err
	return n, err
}

// failure returns the error of a command that returned err: the lost output, unless the command
// failed for another reason.
func (o *output) failure(err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lost == nil || err != nil && !errors.Is(err, ErrUnmet) && !errors.Is(err, o.lost) {
		return err
	}
	return &Failure{What: "write standard output", Why: statefile.Cause(o.lost), Do: "send it where there is room"}
}

// fileOf returns the file that w writes to.
func fileOf(w io.Writer) (f *os.File, ok bool) {
	if o, is := w.(*output); is {
		w = o.Writer
	}
	f, ok = w.(*os.File)
	return f, ok
}
