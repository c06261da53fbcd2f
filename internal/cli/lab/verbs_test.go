package lab

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/cli"
)

// TestVerbsAreListed: tabane lists exactly the commands that this program has besides.
func TestVerbsAreListed(t *testing.T) {
	a := &app{cli.NewApp(cli.Options{Out: io.Discard, Err: io.Discard})}
	var got []cli.Verb
	for _, c := range a.commands() {
		if !c.Hidden {
			got = append(got, cli.Verb{Name: c.Name(), Group: c.GroupID, Short: c.Short})
		}
	}
	slices.SortFunc(got, func(a, b cli.Verb) int { return strings.Compare(a.Name, b.Name) })
	if !slices.Equal(got, cli.Laboratory) {
		t.Errorf("got\n%q\nwant\n%q", got, cli.Laboratory)
	}
}
