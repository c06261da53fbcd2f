// Command tabane-lab has the experiments of tabane: labs, the simulator and the analysis of
// captures and studies. The nodes of its labs run tabane, which is beside it or in PATH.
package main

import (
	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/cli/lab"
)

// version and commit are set by the linker (see the Makefile).
var version, commit string

func main() { cli.Main(lab.Run, version, commit) }
