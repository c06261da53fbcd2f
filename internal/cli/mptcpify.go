package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/mptcp/mptcpify"
)

func (a *App) mptcpifyCommand() *cobra.Command {
	o := mptcpify.Options{How: mptcpify.Auto}
	verbose := false
	c := &cobra.Command{
		Use:     mptcpifyName + " -- CMD...",
		Short:   "Run a program with MPTCP sockets in place of TCP sockets",
		GroupID: "tools",
		Long: `Mptcpify executes a program that does not ask for MPTCP with MPTCP sockets in place of the TCP sockets that it and its children open.
The program replaces this process, so that its files, terminal, signals and exit code are its own. Connections to hosts without MPTCP fall
back to TCP, as usual.

The ways, in the order of auto:

  bpf       any program: the kernel opens MPTCP sockets for its control group. Needs root and a kernel (Linux 6.6) that lets eBPF
            programs change what update_socket_protocol returns.
  seccomp   any program, static ones too: a filter notifies a supervisor, a process beside the program, of each TCP socket, and the
            supervisor opens the MPTCP socket (Linux 5.19). Data does not pass through it. Without CAP_SYS_ADMIN, set-user-ID programs
            gain no privileges.
  preload   dynamically linked programs: the library of mptcpize, where it is installed, by LD_PRELOAD.

Io_uring, whose sockets no way changes, is refused as by a kernel without it (ENOSYS), and programs use ordinary sockets and files instead.
For a program that needs it, give --allow-io-uring: sockets that io_uring opens then stay TCP, all others are MPTCP.

Exit codes: that of the program; 126 if it cannot be executed; 127 if it is not found; 2 if this host cannot do it.`,
		Example: `  tabane mptcpify -- curl -o /dev/null http://server/bytes/100000000
  tabane mptcpify -v -- chromium https://server/
  tabane mptcpify --congestion tabane_lia -- nginx`,
		Args: Arguments(1, -1, "a program and its arguments"),
		RunE: func(_ *cobra.Command, args []string) error {
			o.Args = args
			return a.mptcpify(o, verbose)
		},
	}
	c.Flags().SetInterspersed(false)
	c.Flags().StringVar((*string)(&o.How), "how", string(o.How), "`way` to do it: "+ways())
	c.Flags().StringVar(&o.Congestion, "congestion", "", "congestion `control` of the sockets, by seccomp: of servers, also of subflows that join later")
	c.Flags().BoolVar(&o.Rings, "allow-io-uring", false, "allow io_uring: sockets that it opens stay TCP")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "print which way is used, and why")
	return c
}

// mptcpifyName is the name of the command, which needs the main thread.
const mptcpifyName = "mptcpify"

// ways returns the values of the flag --how.
func ways() string {
	var names []string
	for _, w := range mptcpify.Ways() {
		names = append(names, string(w))
	}
	return "one of " + strings.Join(names, ", ")
}

func (a *App) mptcpify(o mptcpify.Options, verbose bool) error {
	if !slices.Contains(mptcpify.Ways(), o.How) {
		return Invalid("--how", string(o.How), ways())
	}
	o.Env = os.Environ()
	if verbose {
		o.Log = func(s string) { fmt.Fprintln(a.Err, "tabane: "+s) }
	}
	var err error
	if o.Program, err = mptcpify.Find(o.Args[0]); err == nil {
		err = mptcpify.Exec(o)
	}
	failed := &Failure{What: "run program", Name: o.Args[0], Why: err}
	if errors.Is(err, mptcpify.ErrCongestion) {
		failed.Do = "load it with tabane cc load, or name one of net.ipv4.tcp_available_congestion_control"
	}
	var e *mptcpify.ExecError
	switch {
	case !errors.As(err, &e):
		return failed
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		failed.code = exitNotFound
	default:
		failed.code = exitNotExecutable
	}
	failed.What, failed.Why = "execute program", e.Err
	return failed
}
