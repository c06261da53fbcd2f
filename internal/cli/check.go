package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli/config"
)

func (a *App) checkCommand() *cobra.Command {
	return a.CheckFiles(func(ctx context.Context, path string) (string, []string, error) {
		if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
			// It can be read once, and the other program reads every kind of file. Without that
			// program, this one does.
			_ = a.handOver("check "+path, nil)
		}
		f, err := load(ctx, path)
		if other := new(config.KindError); errors.As(err, &other) {
			return "", nil, a.handOver("check "+path, other)
		}
		if err != nil {
			return "", nil, err
		}
		return f.Summary(), f.Warnings, nil
	})
}

// CheckFiles returns the command that checks a file, which read reads; it returns a short
// description of the content.
func (a *App) CheckFiles(read func(ctx context.Context, path string) (summary string, warnings []string, err error)) *cobra.Command {
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
		Args: Arguments(0, 0, "no arguments besides -c FILE"),
		RunE: func(c *cobra.Command, _ []string) error {
			summary, warnings, err := read(c.Context(), file)
			if err != nil {
				return err
			}
			for _, w := range warnings {
				fmt.Fprintf(a.Out, "warning: %s\n", w)
			}
			fmt.Fprintf(a.Out, "%s: ok (%s)\n", file, summary)
			return nil
		},
	}
	FileFlag(c, &file)
	return c
}

// FileFlag adds the required flag -c.
func FileFlag(c *cobra.Command, file *string) {
	c.Flags().StringVarP(file, "config", "c", "", "configuration `file` (required)")
	completeFile(c)
	none := c.Args
	c.Args = func(c *cobra.Command, args []string) error {
		switch {
		case *file != "":
		case len(args) > 0 && c.HasSubCommands():
			return unknownCommand(c, args)
		default:
			return Usage(c, errors.New("want -c FILE"))
		}
		return none(c, args)
	}
}

// completeFile completes the flag --config by files that are YAML.
func completeFile(c *cobra.Command) {
	if err := c.MarkFlagFilename("config", "yaml", "yml"); err != nil {
		panic("BUG: " + err.Error())
	}
}

func load(ctx context.Context, path string) (*config.File, error) {
	return Loaded(ctx, path, config.Load)
}

// Loaded returns the configuration at path, or the failure to read it, until ctx ends: a FIFO may
// have no writer.
func Loaded[F any](ctx context.Context, path string, load func(path string) (F, error)) (F, error) {
	type result struct {
		file F
		err  error
	}
	read := make(chan result, 1)
	go func() {
		f, err := load(path)
		read <- result{f, err}
	}()
	select {
	case r := <-read:
		return r.file, ConfigFailure(path, r.err)
	case <-ctx.Done():
		var none F
		return none, ConfigFailure(path, ErrInterrupted)
	}
}

// ConfigFailure returns the failure to read a configuration, nil for none. Faults of its content
// are returned as they are.
func ConfigFailure(path string, err error) error {
	if _, faults := err.(*config.Error); err == nil || faults {
		return err
	}
	return FileFailure("read configuration", path, err)
}
