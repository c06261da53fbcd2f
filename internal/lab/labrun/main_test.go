package labrun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/lab/labtest"
	"github.com/tabane/tabane/internal/mptcp/mptcpify"
	"github.com/tabane/tabane/internal/role"
)

// fakeFetch is the environment variable that selects the client's behavior: "fail" fails over
// MPTCP, "hang" does not end, "garbage" prints invalid JSON.
const fakeFetch = "TABANE_LAB_TEST_FETCH"

// A program replaces the process with what its main thread has.
func init() {
	if len(os.Args) > 1 && os.Args[1] == mptcpifyVerb {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	mptcpify.Process()
	labtest.Main(m, map[string]func(args []string) error{
		lab.Verb:      lab.Enter,
		lab.RelayVerb: playRelay,
		role.Router:   labtest.PlayRouter,
		role.Serve:    labtest.PlayServe,
		"fetch":       playFetch,
		role.Site:     playSite,
		mptcpifyVerb:  playMPTCPify,
	}, func() (names []string, err error) {
		infos, err := lab.List()
		for _, i := range infos {
			names = append(names, i.Name)
		}
		return names, err
	})
}

func playRelay(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return lab.Relay(ctx, args[0], slog.New(slog.NewTextHandler(os.Stderr, nil)))
}

func playFetch(args []string) error {
	o := traffic.FetchOptions{URL: args[len(args)-1], Transport: traffic.TCP, Interval: interval}
	for i, a := range args {
		switch a {
		case "--mptcp":
			o.Transport = traffic.MPTCP
		case "--upload":
			o.Upload = true
		case "--datagram":
			var err error
			if o.Datagram, err = strconv.Atoi(args[i+1]); err != nil {
				return err
			}
		case "--after":
			var err error
			if o.After, err = time.ParseDuration(args[i+1]); err != nil {
				return err
			}
		case "--objects":
			var err error
			if o.Objects, err = strconv.Atoi(args[i+1]); err != nil {
				return err
			}
		case "--limit":
			var err error
			if o.Limit, err = time.ParseDuration(args[i+1]); err != nil {
				return err
			}
		}
	}
	switch how := os.Getenv(fakeFetch); {
	case how == "garbage":
		fmt.Println("not JSON")
		return nil
	case how == "hang":
		select {}
	case how == "fail" && o.Transport == traffic.MPTCP:
		return errors.New("the fake fetch fails")
	}
	lines := json.NewEncoder(os.Stdout)
	o.Progress = func(s traffic.Sample) { lines.Encode(traffic.FetchLine{Sample: &s}) }
	if o.After > 0 {
		o.Accepted = func() { lines.Encode(traffic.FetchLine{Accepted: true}) }
	}
	r, err := traffic.Fetch(context.Background(), o)
	if err != nil {
		return err
	}
	return lines.Encode(traffic.FetchLine{Report: &r})
}

// start makes a lab that is removed at the end of the test.
func start(t *testing.T, name string, spec *scenario.Spec) *lab.Lab {
	t.Helper()
	labtest.NeedRoot(t)
	o := lab.Options{Name: labtest.Prefix() + name, Spec: spec, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	l, err := lab.Up(t.Context(), o)
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
