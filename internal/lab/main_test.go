package lab

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab/labtest"
	"github.com/tabane/tabane/internal/role"
)

func TestMain(m *testing.M) { labtest.Main(m, verbs, labNames) }

// verbs are the verbs of the tabane program that a lab calls.
var verbs = map[string]func(args []string) error{
	Verb:        Enter,
	RelayVerb:   playRelay,
	role.Router: labtest.PlayRouter,
	role.Serve:  labtest.PlayServe,
	"hold":      playHold,
	"headless":  playHeadless,
}

func init() {
	if len(os.Args) > 1 && os.Args[1] == "headless" {
		runtime.LockOSThread() // keep main on the first thread
	}
}

// playHeadless exits its first thread only.
func playHeadless([]string) error {
	go func() { select {} }()
	fmt.Println("headless")
	syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
	select {}
}

func playRelay(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return Relay(ctx, args[0], slog.New(slog.NewTextHandler(os.Stderr, nil)))
}

// playHold makes a lab and runs until it is killed.
func playHold(args []string) error {
	if _, err := Up(context.Background(), Options{Name: args[0], Spec: labtest.Routed()}); err != nil {
		return err
	}
	fmt.Println("up")
	select {}
}

// options returns the options of a lab for this test.
func options(t testing.TB, name string, spec *scenario.Spec) Options {
	t.Helper()
	labtest.NeedRoot(t)
	return Options{Name: labtest.Prefix() + name, Spec: spec, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

// start makes a lab that is removed at the end of the test.
func start(t testing.TB, o Options) *Lab {
	t.Helper()
	l, err := Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
		labtest.NothingLeft(t, o.Name)
	})
	return l
}

// readLine returns the first line of a process's output.
func readLine(t *testing.T, f *os.File) string {
	t.Helper()
	line, err := bufio.NewReader(f).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}
