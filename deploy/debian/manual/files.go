package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/cli/config"
)

// writeFilePage writes the manual page of the daemons' files, tabane.yaml(5), from the reference of
// their keys.
func writeFilePage(version, dir string, date time.Time) error {
	pages := filepath.Join(dir, "man5")
	if err := os.MkdirAll(pages, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(pages, "tabane.yaml.5"), []byte(filePage(version, date)), 0o644)
}

func filePage(version string, date time.Time) string {
	var page strings.Builder
	fmt.Fprintf(&page, ".TH TABANE.YAML 5 %q %q %q\n", date.Format("Jan 2006"), "tabane "+version, "tabane")
	page.WriteString(".SH NAME\ntabane.yaml \\- configuration of the daemons of tabane\n.SH DESCRIPTION\n")
	page.WriteString(roff("A file is YAML, with a section for each daemon that it configures. By convention that of the daemon NAME is /etc/tabane/NAME.yaml. An unknown key is an error. " +
		"A duration is 50ms or 1m30s; a bandwidth 30Mbit/s; a size 100MB or 64KiB; an address and port \"[::1]:9117\". " +
		"tabane check -c FILE checks a file, and tabane help config KEY prints what a key means."))
	groups := config.Reference()
	reached := []string{config.DaemonFile}
	for i := 0; i < len(reached); i++ { // and what is appended
		for _, g := range groups {
			if g.Name != reached[i] {
				continue
			}
			title := "KEYS OF " + g.Name
			if g.Name == config.DaemonFile {
				title = "SECTIONS"
			}
			fmt.Fprintf(&page, ".SH \"%s\"\n", escaped(title))
			for _, k := range g.Keys {
				fmt.Fprintf(&page, ".TP\n.BR %s \" (%s)\"\n%s", escaped(k.Name), escaped(k.Type), roff(k.Meaning))
				switch k.Default {
				case "required":
					page.WriteString("It must be given.\n")
				case "none", "false":
				default:
					page.WriteString(roff("Default: " + k.Default + "."))
				}
				if k.Example != "" {
					page.WriteString(roff("Example: " + k.Name + ": " + k.Example))
				}
				if k.Group != "" && !slices.Contains(reached, k.Group) {
					reached = append(reached, k.Group)
				}
			}
		}
	}
	page.WriteString(".SH SEE ALSO\n.BR tabane (8),\n.BR tabane-check (8),\n.BR tabane-help-config (8)\n")
	return page.String()
}

// roff returns a paragraph: no line of it is a request.
func roff(text string) string { return "\\&" + escaped(text) + "\n" }

// escaped returns text without the characters that roff takes for others.
func escaped(text string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, `"`, `\(dq`, "\n", " ").Replace(text)
}
