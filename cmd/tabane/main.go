// Command tabane sends content over every path a network has: it has what hosts of a network run.
// See tabane --help. Experiments are of tabane-lab, which it runs.
package main

import (
	"runtime"

	"github.com/tabane/tabane/internal/bgp/bfd"
	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/mptcp/mptcpify"
)

// version and commit are set by the linker (see the Makefile).
var version, commit string

// The verb mptcpify has another program replace this process, with what the main thread has. The
// other verbs unlock it.
func init() { runtime.LockOSThread() }

func main() {
	bfd.Process()
	mptcpify.Process()
	cli.Main(cli.Run, version, commit)
}
