package acceptance

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/testkit/programs"
)

// reload replaces text in a router's file, which must be there, and sends the router SIGHUP.
func (l *lab) reload(node, old, now string) {
	l.t.Helper()
	file := filepath.Join("/run/tabane/lab", l.name, node+".yaml")
	b, err := os.ReadFile(file)
	if err != nil {
		l.t.Fatal(err)
	}
	if !bytes.Contains(b, []byte(old)) {
		l.t.Fatalf("the file has no %q:\n%s", old, b)
	}
	if err := os.WriteFile(file, bytes.Replace(b, []byte(old), []byte(now), 1), 0o600); err != nil {
		l.t.Fatal(err)
	}
	if err := syscall.Kill(l.process(node, "router").PID, syscall.SIGHUP); err != nil {
		l.t.Fatal(err)
	}
}

// TestRouterReload changes what the client's ISP advertises while everything runs.
func TestRouterReload(t *testing.T) {
	t.Parallel()
	l := epe(t)
	const (
		client = "2001:db8:c::/64"
		named  = `"name": "transit-a"`
		denied = `"deny": ["2001:db8:c::/64"], "name": "transit-a"`
	)
	logged := func(times int, want string) func() (bool, string) {
		return func() (bool, string) {
			b, err := os.ReadFile(filepath.Join("/run/tabane/lab", l.name, "client-isp.router.log"))
			return err == nil && bytes.Count(b, []byte(want)) == times, string(b)
		}
	}
	l.reload("client-isp", named, denied)
	l.eventually("Transit A's route goes", 5*time.Second, l.shows(false, client, "server", "route show table 101"))
	l.eventually("the best path moves to Transit B", 5*time.Second, l.shows(true, client+" via 2001:db8:1::2", "server", "route"))

	// A file that is wrong, or that only a restart could follow, changes nothing.
	l.reload("client-isp", denied, `"deny": ["2001:db8:c::1/64"], "name": "transit-a"`)
	l.eventually("the wrong file is refused", 5*time.Second, logged(1, "must be an IP prefix without host bits"))
	l.reload("client-isp", `"deny": ["2001:db8:c::1/64"], "name": "transit-a"`, named)
	l.eventually("Transit A's route returns", 5*time.Second, l.shows(true, client, "server", "route show table 101"))
	l.reload("client-isp", `"router_id": "10.3.0.1"`, `"router_id": "10.3.0.9"`)
	l.eventually("the other router ID is refused", 5*time.Second, logged(1, "a restart is needed"))
	l.reload("client-isp", `"router_id": "10.3.0.9"`, `"router_id": "10.3.0.1"`)

	// Another network. Until here no session has ended.
	l.reload("client-isp", `"2001:db8:c::/64"`, `"2001:db8:c::/64", "2001:db8:c:1::/64"`)
	l.eventually("the other network arrives", 5*time.Second, l.shows(true, "2001:db8:c:1::/64", "server", "route show table 101"))
	if ok, log := logged(2, "session up")(); !ok {
		t.Errorf("a session ended:\n%s", log)
	}
	// One neighbor's session is reset, the other's stays up.
	l.reload("client-isp", `"local_pref": 200,`, `"local_pref": 300,`)
	l.eventually("one session is reset", 20*time.Second, logged(3, "session up"))
	l.eventually("the route is back", 15*time.Second, l.shows(true, client, "server", "route show table 101"))
}

// TestFollowingRoutes makes both changes of epe-routes once. How long they took is not judged here.
func TestFollowingRoutes(t *testing.T) {
	t.Parallel()
	for _, routers := range []string{"embedded", "frr"} {
		t.Run(routers, func(t *testing.T) {
			needLab(t)
			if routers == "frr" {
				programs.Need(t, "vtysh")
			}
			b, err := os.ReadFile("../../scenarios/epe-routes/scenario.yaml")
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			file, out := filepath.Join(dir, "scenario.yaml"), filepath.Join(dir, "out")
			b = bytes.Replace(b, []byte("name: epe-routes"), []byte("name: "+labPrefix()+"routes"), 1)
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
			said, err := exec.Command(program, "lab", "run", file, "--routers", routers, "--trials", "1", "--out", out).CombinedOutput()
			// Exit code 1 says that a bound on time did not hold.
			if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
				t.Fatalf("%v: %s", err, said)
			}
			b, err = os.ReadFile(filepath.Join(out, "result.json"))
			if err != nil {
				t.Fatal(err)
			}
			var result struct{ Runs []map[string]any }
			if err := json.Unmarshal(b, &result); err != nil {
				t.Fatal(err)
			}
			if len(result.Runs) != 2 {
				t.Errorf("%d runs: %s", len(result.Runs), said)
			}
			for _, run := range result.Runs {
				for _, metric := range []string{"epe_route_s", "best_path_s", "subflow_s", "asbr_route_s", "asbr_received_s", "own_part_s", "reflector_part_s"} {
					if v, ok := run[metric].(float64); !ok || v < 0 || run["transport"] != routers {
						t.Errorf("%s %s: %s is %v, error %v", run["case"], run["transport"], metric, run[metric], run["error"])
					}
				}
				if run["connections_lost"] != 0.0 {
					t.Errorf("%s: %v connections lost", run["case"], run["connections_lost"])
				}
			}
			if _, err := os.Stat(filepath.Join(out, "figures/routes.svg")); err != nil {
				t.Error(err)
			}
		})
	}
}
