package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/config"
)

func (a *app) checkCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:     "check -c FILE",
		Short:   "Check a configuration or scenario file without touching the kernel",
		GroupID: "tools",
		Long: `Check reads a file as the daemons and the lab do and prints all faults, one per line, as "FILE:LINE:COLUMN: path: message".
It warns of what is valid but has no effect, such as a policy rule that no route reaches or more egress peers than a connection uses. It
changes nothing. Exit code 0: the file is valid; 2: it is not.`,
		Example: `  tabane check -c /etc/tabane/edge.yaml
  tabane check -c scenarios/epe-steady/scenario.yaml`,
		Args: arguments(0, 0, "no arguments besides -c FILE"),
		RunE: func(*cobra.Command, []string) error {
			f, err := load(file)
			if err != nil {
				return err
			}
			for _, w := range f.Warnings {
				fmt.Fprintf(a.out, "warning: %s\n", w)
			}
			fmt.Fprintf(a.out, "%s: ok (%s)\n", file, summary(f))
			return nil
		},
	}
	fileFlag(c, &file)
	return c
}

// fileFlag adds the required flag -c.
func fileFlag(c *cobra.Command, file *string) {
	c.Flags().StringVarP(file, "config", "c", "", "configuration `file` (required)")
	if err := c.MarkFlagFilename("config", "yaml", "yml"); err != nil {
		panic("BUG: " + err.Error())
	}
	none := c.Args
	c.Args = func(c *cobra.Command, args []string) error {
		if *file == "" {
			return usage(c, errors.New("want -c FILE"))
		}
		return none(c, args)
	}
}

func load(path string) (*config.File, error) {
	f, err := config.Load(path)
	if err == nil {
		return f, nil
	}
	if _, faults := err.(*config.Error); faults {
		return nil, err
	}
	return nil, fileFailure("read the configuration", path, err)
}

// summary returns a short description of the content of a file.
func summary(f *config.File) string {
	var parts []string
	if s := f.Scenario; s != nil {
		text := fmt.Sprintf("scenario %q: %s, %s", s.Name, quantity(len(s.Nodes), "node"), quantity(len(s.Links), "link"))
		if e := s.Experiment; e != nil {
			text += fmt.Sprintf(", %s x %d traffic x %s", quantity(len(e.Cases), "case"), len(e.Traffic), quantity(len(e.Transports), "transport"))
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
