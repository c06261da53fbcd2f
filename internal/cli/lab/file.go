package lab

import (
	"context"
	"fmt"
	"strings"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/cli/files"
)

func loadFile(path string) (*files.File, error) {
	f, err := files.Load(path)
	return f, cli.ConfigFailure(path, err)
}

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
