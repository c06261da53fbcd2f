package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/cli/lab"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// played are programs that scripts run and that this test binary plays: the products, and what a
// machine without anything else needs in their place.
var played = map[string]func(){
	"tabane":       main,
	"tabane-lab":   laboratory,
	"inside":       func() { fatal(inside(os.Args[1:])) },
	"echo-request": func() { fatal(echoRequest(os.Args[1:])) },
}

// laboratory does what the program tabane-lab does.
func laboratory() { cli.Main(lab.Run, version, commit) }

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(125)
	}
}

// inside NAMESPACE PROGRAM ARGS... becomes the program, in that network namespace.
func inside(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: inside NAMESPACE PROGRAM ARGS")
	}
	path, err := exec.LookPath(args[1])
	if err != nil {
		return err
	}
	f, err := os.Open("/run/netns/" + args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	runtime.LockOSThread()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	return syscall.Exec(path, args[1:], os.Environ())
}

// echoRequest NAME sends three echo requests and prints what came back.
func echoRequest(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: echo-request NAME")
	}
	addrs, err := net.DefaultResolver.LookupNetIP(context.Background(), "ip", args[0])
	if err != nil {
		return err
	}
	e, err := netnstest.Echo("", addrs[0], 3, 56)
	fmt.Printf("%d answers, the shortest round trip %.3fms\n", e.Received, float64(e.Shortest.Microseconds())/1000)
	return err
}

// gunzip SOURCE DESTINATION decompresses a file.
func gunzip(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: gunzip SOURCE DESTINATION")
	}
	f, err := os.Open(ts.MkAbs(args[0]))
	ts.Check(err)
	defer f.Close()
	r, err := gzip.NewReader(f)
	ts.Check(err)
	b, err := io.ReadAll(r)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), b, 0o600))
}

// sysctl KEY VALUE sets a parameter of the kernel in the network namespace $NETNS.
func setSysctl(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: sysctl KEY VALUE")
	}
	file := "/proc/sys/" + strings.ReplaceAll(args[0], ".", "/")
	ts.Check(netns.Do(ts.Getenv("NETNS"), func() error { return os.WriteFile(file, []byte(args[1]), 0) }))
}
