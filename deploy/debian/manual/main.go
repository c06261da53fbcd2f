// Command manual writes the manual pages and shell completions that the Debian packages install:
//
//	go run ./deploy/debian/manual VERSION DIR
//
// Pages of tabane are in DIR/tabane/man8, that of its files in DIR/tabane/man5, those of tabane-lab
// in DIR/tabane-lab/man8, and completions for bash, zsh and fish in DIR/completions. The date is
// that of SOURCE_DATE_EPOCH, so that the same source gives the same files. The programs do not have
// this, because only packages need it.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/cli/lab"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: go run ./deploy/debian/manual VERSION DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintf(os.Stderr, "write manual %q: %v\n", os.Args[2], err)
		os.Exit(2)
	}
}

// write writes the pages and completions of a version below dir.
func write(version, dir string) error {
	date, err := sourceDate()
	if err != nil {
		return err
	}
	product := cli.Command(cli.Options{})
	for _, c := range product.Commands() {
		if slices.ContainsFunc(cli.Laboratory, func(v cli.Verb) bool { return v.Name == c.Name() }) {
			product.RemoveCommand(c) // it only runs tabane-lab, which has the page
		}
	}
	header := doc.GenManHeader{Section: "8", Source: "tabane " + version, Manual: "tabane", Date: &date}
	for name, root := range map[string]*cobra.Command{"tabane": product, "tabane-lab": lab.Command(cli.Options{})} {
		pages := filepath.Join(dir, name, "man8")
		if err := os.MkdirAll(pages, 0o755); err != nil {
			return err
		}
		root.DisableAutoGenTag = true
		if err := doc.GenManTree(root, &header, pages); err != nil {
			return err
		}
	}
	if err := writeFilePage(version, filepath.Join(dir, "tabane"), date); err != nil {
		return err
	}
	return complete(product, filepath.Join(dir, "completions"))
}

// sourceDate returns the time of SOURCE_DATE_EPOCH, or else the present.
func sourceDate() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return time.Now().UTC(), nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("parse SOURCE_DATE_EPOCH %q: want seconds since 1970", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// complete writes the completions of a program, which ask the program for everything.
func complete(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, generate := range map[string]func(string) error{
		"tabane":      func(file string) error { return root.GenBashCompletionFileV2(file, true) },
		"_tabane":     root.GenZshCompletionFile,
		"tabane.fish": func(file string) error { return root.GenFishCompletionFile(file, true) },
	} {
		if err := generate(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
