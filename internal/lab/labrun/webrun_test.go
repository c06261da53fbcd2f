package labrun

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/lab/labtest"
	"github.com/tabane/tabane/internal/mptcp/mptcpify"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/study/content"
	"github.com/tabane/tabane/internal/study/httpd"
	"github.com/tabane/tabane/internal/study/site"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// mptcpifyVerb is the verb that a run starts browsers with.
const mptcpifyVerb = "mptcpify"

func playMPTCPify(args []string) error {
	program, err := mptcpify.Find(args[1])
	if err != nil {
		return err
	}
	return mptcpify.Exec(mptcpify.Options{How: mptcpify.Auto, Program: program, Args: args[1:], Env: os.Environ()})
}

// siteHold is the environment variable with the directory of the files hold, while which exists
// requests of siteHeld are not answered, and held, which such a request makes.
const (
	siteHold = "TABANE_LAB_TEST_SITE"
	siteHeld = "/map/place/"
)

// playSite serves pages as tabane site does.
func playSite(args []string) error {
	b, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	var c struct{ Site httpd.Config } // the lab writes JSON
	if err := json.Unmarshal(b, &c); err != nil {
		return err
	}
	if err := c.Site.Files(filepath.Dir(args[1])).Err(); err != nil {
		return err
	}
	dir := os.Getenv(siteHold)
	hold := func(_ int, services http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := os.Stat(filepath.Join(dir, "hold")); err == nil && strings.HasPrefix(r.URL.Path, siteHeld) {
				if err := os.WriteFile(filepath.Join(dir, "held"), nil, 0o600); err != nil {
					panic(err)
				}
				<-r.Context().Done()
				return
			}
			services.ServeHTTP(w, r)
		})
	}
	s, err := site.New(site.Options{Config: c.Site, Log: slog.New(slog.DiscardHandler), Wrap: hold})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	d, _ := role.Named(role.Site)
	status := &http.Server{Addr: d.DefaultStatus().String(), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"ready": true}`)
	})}
	defer status.Close()
	go status.ListenAndServe()
	return s.Run(ctx)
}

// webExperiment is a network with an experiment of scenario.KindWeb over two links, both emulated.
func webExperiment() *scenario.Spec {
	link := func(i int) *scenario.Link {
		at := func(node, host string) scenario.End {
			return labtest.End(node, fmt.Sprintf("path%d", i), fmt.Sprintf("2001:db8:%d::%s/64", i, host))
		}
		return &scenario.Link{Shape: scenario.Shape{Rate: 100e6}, Emulate: true, Seed: uint64(i), Ends: []scenario.End{at("server", "1"), at("client", "2")}}
	}
	return &scenario.Spec{
		Name: "pages", Title: "Pages",
		Nodes: map[string]*scenario.Node{
			"server": {
				Address:  netip.MustParseAddr("2001:db8:1::1"),
				Sections: role.Sections{Site: &httpd.Config{Seed: 1, Listen: []httpd.Listen{{Address: netip.MustParseAddrPort("[::]:80")}}}},
				MPTCP:    &scenario.MPTCP{MPTCP: edge.MPTCP{Subflows: 1}, Announce: []netip.Addr{netip.MustParseAddr("2001:db8:2::1")}},
			},
			"client": {MPTCP: &scenario.MPTCP{MPTCP: edge.MPTCP{Subflows: 1, AddAddrAccepted: 1}}},
		},
		Links: map[string]*scenario.Link{"path1": link(1), "path2": link(2)},
		Experiment: &scenario.Experiment{
			Kind: scenario.KindWeb, Server: "server", Client: "client", Trials: 1,
			Cases:      []scenario.Case{{Name: "plain"}},
			Traffic:    map[string]*scenario.Traffic{"map": {Duration: time.Minute, Quick: time.Millisecond, Web: &scenario.Web{Service: content.Map}}},
			Transports: map[string]*scenario.Transport{"mptcp": {MPTCP: true, Links: []string{"path1", "path2"}}},
		},
	}
}

// webOptions returns the options of a quick run of webExperiment.
func webOptions(t *testing.T, name string) RunOptions {
	t.Helper()
	programs.Need(t, "chromium")
	o := runOptions(t, name)
	o.Spec, o.Quick = webExperiment(), true
	profiles := t.TempDir()
	t.Setenv("TMPDIR", profiles)
	t.Cleanup(func() {
		labtest.NothingLeft(t, o.Name)
		if left, err := os.ReadDir(profiles); err != nil || len(left) > 0 {
			t.Errorf("profiles left: %v, %v", left, err)
		}
		if left := commands(t, profiles); len(left) > 0 {
			t.Errorf("browsers left: %v", left)
		}
	})
	return o
}

// commands returns the processes whose command line contains a text and all of others.
func commands(t *testing.T, text string, others ...string) (found []int) {
	t.Helper()
	lists, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lists {
		b, _ := os.ReadFile(l) // an error means that it has exited
		contains := bytes.Contains(b, []byte(text))
		for _, o := range others {
			contains = contains && bytes.Contains(b, []byte(o))
		}
		if contains {
			pid, _ := strconv.Atoi(strings.Split(l, "/")[2])
			found = append(found, pid)
		}
	}
	return found
}

// holds makes the site hold requests in a directory of the test, and returns a function that sets
// whether it does, and one that waits until it has.
func holds(t *testing.T) (set func(bool), wait func()) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv(siteHold, dir)
	set = func(on bool) {
		err := errors.Join(removed(filepath.Join(dir, "hold")), removed(filepath.Join(dir, "held")))
		if on {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, "hold"), nil, 0o600))
		}
		if err != nil {
			t.Error(err)
		}
	}
	wait = func() {
		for t.Context().Err() == nil {
			if _, err := os.Stat(filepath.Join(dir, "held")); err == nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
	return set, wait
}

func removed(file string) error {
	if err := os.Remove(file); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// TestWebDeaths: whatever dies in a trial, the trial counts as failed with the reason, and the next
// one runs.
func TestWebDeaths(t *testing.T) {
	o := webOptions(t, "web")
	hold, held := holds(t)
	kill := func(pids ...int) {
		if len(pids) == 0 {
			t.Error("nothing to kill")
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}
	daemon := func(node, role string) int {
		all, err := lab.Processes(o.Name)
		if err != nil {
			t.Error(err)
		}
		for _, p := range all {
			if p.Node == node && p.Role == role {
				return p.PID
			}
		}
		return 0
	}
	deaths := []struct {
		what string
		// before kills before the page loads, during while it waits for the site.
		before, during func()
		want           string
	}{
		{"nothing", nil, nil, ""},
		{"supervisor", func() {
			all := supervisors(t)
			for _, pid := range all { // a spare starts another one
				if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
					t.Error(err)
				}
			}
			kill(all...)
		}, nil, "net::ERR"},
		{"browser", nil, func() { kill(browsers(t)...) }, "the browser closed the connection"},
		{"server", nil, func() { kill(daemon("server", role.Site)) }, "server (site) ended: signal: killed"},
		{"link", nil, func() { kill(daemon("path1", lab.RoleLink)) }, "path1 (link) ended: signal: killed"},
		{"nothing more", nil, nil, ""},
	}
	o.Trials, o.HAR = len(deaths), true
	requests := map[int]int{} // by trial
	o.Progress = func(e Event) {
		if e.Archive != nil {
			requests[e.Archive.Trial] = bytes.Count(e.Archive.HAR, []byte(`"pageref":`))
		}
		if e.Kind != RunStarted {
			return
		}
		d := deaths[e.Trial]
		hold(d.during != nil)
		if d.before != nil {
			d.before()
		}
		if d.during != nil {
			go func() {
				held()
				d.during()
			}()
		}
	}
	outcome, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(outcome.Runs) != len(deaths) || outcome.Holds() {
		t.Fatalf("result %+v", outcome)
	}
	for i, run := range outcome.Runs {
		switch want, err := deaths[i].want, run.Err(); {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: got %v, want %q", deaths[i].what, err, want)
		case want == "" && (run.Metrics[result.Effectiveness] != 3 || run.Metrics[result.FirstView] <= 0 || run.Metrics[result.LeastPath] < 0):
			t.Errorf("%s: %v", deaths[i].what, run.Metrics)
		case want == "" && requests[run.Trial] < int(run.Metrics[result.ViewRequests]), deaths[i].during != nil && requests[run.Trial] == 0:
			t.Errorf("%s: %d requests recorded, and the first view has %g", deaths[i].what, requests[run.Trial], run.Metrics[result.ViewRequests])
		}
	}
}

// supervisors returns the processes of mptcpify for the browser.
func supervisors(t *testing.T) (found []int) {
	t.Helper()
	for _, browser := range browsers(t) {
		for _, pid := range commands(t, fmt.Sprintf("\x00%d\x00", browser)) {
			if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); strings.HasPrefix(string(comm), "mptcpify") {
				found = append(found, pid)
			}
		}
	}
	return found
}

// browsers returns the processes of browsers that talk to the test.
func browsers(t *testing.T) []int { return commands(t, "--remote-debugging-pipe", os.TempDir()) }

// TestWebHangs: a page that hangs and a browser that does not run are timed out.
func TestWebHangs(t *testing.T) {
	o := webOptions(t, "hangs")
	hold, held := holds(t)
	o.Spec.Experiment.Traffic["map"].Duration = time.Second
	o.Trials = 2
	o.Progress = func(e Event) {
		if e.Kind != RunStarted {
			return
		}
		hold(true)
		if e.Trial == 1 {
			go func() {
				held()
				for _, pid := range browsers(t) {
					_ = syscall.Kill(pid, unix.SIGSTOP) // the trial may be over
				}
			}()
		}
	}
	outcome, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range outcome.Runs {
		if err := run.Err(); err == nil || !strings.Contains(err.Error(), "took longer than 1s") {
			t.Errorf("trial %d: %v", run.Trial, err)
		}
	}
	if len(outcome.Runs) != 2 {
		t.Errorf("result %+v", outcome)
	}
}

// TestWebRefuses: what fails each page is an error of the run, before its first trial.
func TestWebRefuses(t *testing.T) {
	o := webOptions(t, "refused")
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "a browser is not available: none of chromium") {
		t.Errorf("no browser: %v", err)
	}
	if err := os.WriteFile(filepath.Join(bin, "chromium"), []byte("#!/bin/sh\necho cannot open shared object >&2\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), `no page can be loaded over transport "mptcp": start browser: `) || !strings.Contains(err.Error(), "cannot open shared object") {
		t.Errorf("a browser that ends: %v", err)
	}
}

// TestWebSessions: two sessions of a trial play tasks of their own at the same time, and more than
// the processors carry are refused.
func TestWebSessions(t *testing.T) {
	o := webOptions(t, "sessions")
	traffic := o.Spec.Experiment.Traffic["map"]
	for traffic.Quick = time.Second; capacity(o.Spec.WithSessions(2), true, runtime.NumCPU()) != nil; {
		traffic.Quick += 100 * time.Millisecond
	}
	o.Sessions = 2
	outcome, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(outcome.Runs) != 1 || outcome.Runs[0].Err() != nil {
		t.Fatalf("result %+v", outcome)
	}
	world, steps, think := content.New(1), 0, time.Duration(0)
	for seed := range uint64(o.Sessions) {
		task := world.Task(content.Map, false, traffic.Web.Seed+seed)
		steps += len(task.Loads) - 1
		own := time.Duration(0)
		for _, s := range task.Steps {
			own += s.Think
		}
		think += min(own, traffic.Quick)
	}
	m := outcome.Runs[0].Metrics
	if got, want := m[result.Steps], float64(steps)/2; got != want || m[result.Effectiveness] != 3 {
		t.Errorf("%g steps and %g conditions, want %g and 3", got, m[result.Effectiveness], want)
	}
	if m[result.TaskTime] < think.Seconds()/2 {
		t.Errorf("a task took %g s on average, less than its think times of %s", m[result.TaskTime], think/2)
	}
	o.Sessions = 60
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), `60 sessions of traffic "map" would use `) {
		t.Errorf("60 sessions: %v", err)
	}
}
