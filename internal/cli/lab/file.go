package lab

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/google/renameio/v2"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/cli/config"
	"github.com/tabane/tabane/internal/cli/files"
)

// checkAny checks a file of any kind.
func checkAny(ctx context.Context, path string) (string, []string, error) {
	f, err := cli.Loaded(ctx, path, files.Load)
	if err != nil {
		return "", nil, err
	}
	return summary(f), f.Warnings, nil
}

// summary returns a short description of the content of a file.
func summary(f *files.File) string {
	var parts []string
	if s := f.Scenario; s != nil {
		text := fmt.Sprintf("scenario %q: %s, %s", s.Name, cli.Quantity(len(s.Nodes), "node"), cli.Quantity(len(s.Links), "link"))
		if e := s.Experiment; e != nil {
			text += fmt.Sprintf(", %s x %d traffic x %s", cli.Quantity(len(e.Cases), "case"), len(e.Traffic), cli.Quantity(len(e.Transports), "transport"))
		}
		parts = append(parts, text)
	}
	if f.Study != nil {
		parts = append(parts, "study: "+f.Study.Summary())
	}
	if text := f.Sections.Summary(); text != "" {
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// writeFile replaces a file in one step. What is no regular file, such as /dev/stdout, is written to:
// root could replace a device.
func writeFile(name string, b []byte) error {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return os.WriteFile(name, b, 0o644)
	}
	return renameio.WriteFile(name, b, 0o644)
}

// A library reads files of scenarios. A pipe can be read once, so it keeps what came out of one. It
// is safe for concurrent use.
type library struct {
	mu    sync.Mutex
	pipes map[string][]byte
}

// texts are the files that this process has read.
var texts library

func (l *library) read(name string) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b, ok := l.pipes[name]; ok {
		return b, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, config.MaxSize+1))
	if err == nil && !info.Mode().IsRegular() {
		if l.pipes == nil {
			l.pipes = map[string][]byte{}
		}
		l.pipes[name] = b
	}
	return b, err
}
