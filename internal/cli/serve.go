package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/analysis/measure"
	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/privilege"
	"github.com/tabane/tabane/internal/role"
)

func (a *App) serveCommand() *cobra.Command {
	var (
		addresses  []string
		file       string
		congestion string
	)
	c := &cobra.Command{
		Use:     "serve [--listen ADDRESS]... | -c FILE",
		Short:   "Serve content over HTTP, over MPTCP where the client supports it",
		GroupID: "tools",
		Long: `Serve answers GET /bytes/N with N bytes as fast as the network carries them, and GET /cbr?rate=25Mbit/s&duration=30s with a
constant bit rate. Any HTTP client works. "tabane measure run" measures with it as with "tabane measure serve", which has a key and
limits. With -c it serves on the port in the section "serve:" of the file. It runs until SIGINT or SIGTERM.`,
		Example: `  tabane serve
  tabane serve --listen '[::1]:8080' --listen 127.0.0.1:8080
  curl -o /dev/null 'http://[::1]:8080/bytes/100000000'`,
		Args: Arguments(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := a.Logger(a.Err, slog.LevelInfo)
			if err != nil {
				return err
			}
			if file != "" && c.Flags().Changed("listen") {
				return Usage(c, errors.New("--listen and -c cannot be used together"))
			}
			listen, err := listenAddresses(c.Context(), addresses, file)
			if err != nil {
				return err
			}
			at, err := edgeAddress("")
			if err != nil {
				return err
			}
			return a.serve(c.Context(), log, listen, congestion, measure.ServerOptions{Congestion: congestion, Peers: edgePeers(log, at)}, nil)
		},
	}
	c.Flags().StringArrayVar(&addresses, "listen", []string{"[::]:8080"}, "`address` and port to serve on, repeatable; port 0 chooses a free one")
	c.Flags().StringVarP(&file, "config", "c", "", "configuration `file` with a section serve")
	completeFile(c)
	c.Flags().StringVar(&congestion, "congestion", "", "congestion control of all subflows, by its `name` in the kernel such as tabane_lia (default the sysctl's)")
	return c
}

// serve serves content and measurements until ctx ends. byEdge, if set, delivers to measured clients
// by the modes of an edge.
func (a *App) serve(ctx context.Context, log *slog.Logger, listen []netip.AddrPort, congestion string, o measure.ServerOptions, byEdge *edgeDelivery) error {
	o.Log, o.Version = log, a.Version
	o.Kernel, _ = netns.ReadSysctl("kernel.osrelease") // without it, it is not known
	if o.Congestion == "" {
		o.Congestion, _ = netns.ReadSysctl("net.ipv4.tcp_congestion_control")
	}
	if subflows, err := measure.OpenSubflows(); err != nil {
		log.Debug("connections are not switched between modes", "err", err)
	} else {
		defer subflows.Close()
		o.Delivery = subflows
	}
	if byEdge != nil {
		byEdge.connection, o.Delivery = o.Delivery, byEdge
	}
	server, err := traffic.New(traffic.Options{Listen: listen, Congestion: congestion, Also: measure.NewServer(o).Handlers(), Log: log})
	if err != nil {
		return serveFailure(addressList(listen), err)
	}
	// A client may request a restricted congestion control, and the subflows that are used.
	if err := privilege.Keep(privilege.NetAdmin); err != nil {
		log.Warn("capabilities are kept", "err", err)
	}
	log.Info("serving", "addresses", fmt.Sprint(server.Addrs()))
	if err := server.Run(ctx); err != nil && !errors.Is(err, ctx.Err()) {
		return &Failure{What: "serve at", Name: addressList(server.Addrs()), Why: err}
	}
	return nil
}

// listenAddresses returns the addresses of the file's section serve, or those of the flags without
// a file.
func listenAddresses(ctx context.Context, flags []string, file string) ([]netip.AddrPort, error) {
	if file != "" {
		f, err := load(ctx, file)
		if err != nil {
			return nil, err
		}
		if f.Serve == nil {
			return nil, missingSection(role.Serve, file, f)
		}
		return f.Serve.Listen(), nil
	}
	var listen []netip.AddrPort
	for _, text := range flags {
		at, err := netip.ParseAddrPort(text)
		if err != nil {
			return nil, Invalid("--listen", text, `an address and port like "[::]:8080"`)
		}
		listen = append(listen, at)
	}
	return listen, nil
}

// addressList returns the addresses as one name of a failure.
func addressList(addresses []netip.AddrPort) string {
	var list []string
	for _, at := range addresses {
		list = append(list, at.String())
	}
	return strings.Join(list, ", ")
}

func serveFailure(addresses string, err error) error {
	do := ""
	var failed *net.OpError
	if errors.As(err, &failed) && failed.Addr != nil {
		addresses, err = failed.Addr.String(), failed // it is one of them
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		do = "stop the program that uses it, or choose another address with --listen"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		do = "add the address to an interface first"
	case errors.Is(err, syscall.ENOENT):
		do = "load the congestion control first; tabane cc status shows what is loaded"
	case errors.Is(err, syscall.EACCES):
		do = "run it as root, or choose a port above 1023"
	}
	return &Failure{What: "serve at", Name: addresses, Why: err, Do: do}
}
