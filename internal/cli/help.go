package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli/config"
)

// helpWidth is the line length of the reference when it is not printed on a terminal.
const helpWidth = 100

// helpCommand returns cobra's help command with a subcommand for the keys of files.
func (a *App) helpCommand() *cobra.Command {
	help := &cobra.Command{
		Use:   "help [COMMAND...]",
		Short: "Help about any command, and about the keys of files",
		Long: `Help prints the help of a command, as --help does. "tabane help config KEY" prints what a key of a configuration or scenario file
means.`,
		Example: `  tabane help lab run
  tabane help config
  tabane help config edge.mptcp.best_path`,
		RunE: func(c *cobra.Command, args []string) error {
			to, rest, err := c.Root().Find(args)
			if err == nil && isLaboratory(to) {
				return a.handOver("print help", nil)
			}
			if err != nil || to == nil || len(rest) > 0 {
				return unknownCommand(c.Root(), args)
			}
			to.InitDefaultHelpFlag()
			return to.Help()
		},
	}
	help.AddCommand(a.helpConfigCommand())
	return help
}

func (a *App) helpConfigCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "config [KEY]",
		Short: "Print what a key of a configuration or scenario file means",
		Long: `Config prints type, default, meaning and an example of a key, and the keys below it. List indexes and the names of nodes, links,
traffic and transports can be left out. docs/reference.md has all keys on one page.`,
		Example: `  tabane help config edge
  tabane help config edge.mptcp.best_path
  tabane help config links.a.loss`,
		Args: Arguments(0, 1, "at most one key"),
		RunE: func(_ *cobra.Command, args []string) error {
			path := strings.Join(args, "")
			key, below, err := config.Find(path)
			if err != nil {
				return &Failure{What: "find key", Name: path, Why: err, Do: "see tabane help config"}
			}
			columns := Width(a.Out)
			if columns == 0 {
				columns = helpWidth
			}
			return printKey(a.Out, path, key, below, columns)
		},
	}
}

// printKey prints a key and those below it. An empty path prints the keys of whole files.
func printKey(w io.Writer, path string, key config.Key, below []config.Key, columns int) error {
	if path != "" {
		fmt.Fprintln(w, path)
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintf(tw, "  type\t%s\n  default\t%s\n", key.Type, key.Default)
		if key.Example != "" {
			fmt.Fprintf(tw, "  example\t%s: %s\n", key.Name, key.Example)
		}
		if err := tw.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(w)
		PrintWrapped(w, "  ", "  ", key.Meaning, columns)
		if len(below) == 0 {
			return nil
		}
		fmt.Fprintln(w)
	}
	longest := 0
	for _, k := range below {
		longest = max(longest, len(k.Name))
	}
	indent := strings.Repeat(" ", longest+4)
	for _, k := range below {
		note := k.Meaning
		switch k.Default {
		case "none", "false":
		case "required":
			note = "(required) " + note
		default:
			note += " Default: " + k.Default + "."
		}
		PrintWrapped(w, fmt.Sprintf("  %-*s  ", longest, k.Name), indent, note, columns)
	}
	return nil
}

// PrintWrapped prints text after first, wrapped at this number of columns; further lines begin with
// rest. Longer words are not broken.
func PrintWrapped(w io.Writer, first, rest, text string, columns int) {
	line, empty := first, true
	for _, word := range strings.Fields(text) {
		if !empty && len([]rune(line))+1+len([]rune(word)) > columns {
			fmt.Fprintln(w, line)
			line, empty = rest, true
		}
		if !empty {
			line += " "
		}
		line += word
		empty = false
	}
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}
