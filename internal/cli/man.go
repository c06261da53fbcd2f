package cli

import (
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// ManCommand writes the manual pages and completions that packages install. It is hidden.
func (a *App) ManCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write manual pages and shell completions into DIR",
		Hidden: true,
		Long: `Man writes the manual pages of all commands into DIR/man8, and completions for bash, zsh and fish into DIR/completions. The
date is that of SOURCE_DATE_EPOCH, so that the same source gives the same files.`,
		Args: Arguments(1, 1, "one directory"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.writeManual(c.Root(), args[0]); err != nil {
				return &Failure{What: "write manual", Name: args[0], Why: err}
			}
			return nil
		},
	}
}

func (a *App) writeManual(root *cobra.Command, dir string) error {
	date := time.Now()
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return err
		}
		date = time.Unix(seconds, 0)
	}
	date = date.UTC()
	pages, completions := filepath.Join(dir, "man8"), filepath.Join(dir, "completions")
	for _, d := range []string{pages, completions} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	for _, c := range root.Commands() {
		if isLaboratory(c) {
			root.RemoveCommand(c) // its pages are of the package of tabane-lab
		}
	}
	root.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "8", Source: "tabane " + a.Version, Manual: "tabane", Date: &date}
	if err := doc.GenManTree(root, header, pages); err != nil {
		return err
	}
	for name, generate := range map[string]func(string) error{
		"tabane":      func(file string) error { return root.GenBashCompletionFileV2(file, true) },
		"_tabane":     root.GenZshCompletionFile,
		"tabane.fish": func(file string) error { return root.GenFishCompletionFile(file, true) },
	} {
		if err := generate(filepath.Join(completions, name)); err != nil {
			return err
		}
	}
	return nil
}
