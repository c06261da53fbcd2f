package acceptance

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// section is a daemon's section of a node's configuration file.
type section map[string]any

// edit changes a daemon's section of a node's configuration file, and returns a function that
// restores the file.
func (l *lab) edit(node, role string, change func(section)) (restore func()) {
	l.t.Helper()
	file := filepath.Join("/run/tabane/lab", l.name, node+".yaml")
	before, err := os.ReadFile(file)
	if err != nil {
		l.t.Fatal(err)
	}
	var all map[string]section
	if err := json.Unmarshal(before, &all); err != nil || all[role] == nil {
		l.t.Fatalf("%s: %v:\n%s", file, err, before)
	}
	change(all[role])
	after, err := json.Marshal(all)
	if err != nil {
		l.t.Fatal(err)
	}
	write := func(b []byte) {
		l.t.Helper()
		if err := os.WriteFile(file, b, 0o600); err != nil {
			l.t.Fatal(err)
		}
	}
	write(after)
	return func() { l.t.Helper(); write(before) }
}

// reloaded runs tabane reload, which must print these changes.
func (l *lab) reloaded(node, role string, want ...string) {
	l.t.Helper()
	var got []string
	for line := range strings.Lines(l.must(node, program, "reload", role)) {
		_, text, _ := strings.Cut(strings.TrimSpace(line), ": ")
		got = append(got, text)
	}
	if !slices.Equal(got, want) {
		l.t.Errorf("reload of %s on %s: %q, want %q", role, node, got, want)
	}
}

// refused runs tabane reload, which must be rejected for this reason.
func (l *lab) refused(node, role, why string) {
	l.t.Helper()
	if out, err := l.try(node, program, "reload", role); err == nil || !strings.Contains(err.Error(), why) {
		l.t.Errorf("reload of %s on %s: %q, %v", role, node, out, err)
	}
}

// kept fails the test for each session of a daemon, except those named, that is down or has been
// reset.
func (l *lab) kept(node, role string, except ...string) {
	l.t.Helper()
	var s struct {
		Sessions []struct {
			Neighbor string
			Up       bool
			Flaps    int
			Uptime   int `json:"uptime_seconds"`
		}
	}
	out, _ := l.try(node, program, "status", "--json", role) // fails while degraded
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		l.t.Fatal(err)
	}
	for _, session := range s.Sessions {
		if !slices.Contains(except, session.Neighbor) && (!session.Up || session.Flaps > 0) {
			l.t.Errorf("%s on %s: %+v", role, node, session)
		}
	}
}

// stream starts a download of 15 Mbit/s over every egress path; the function that it returns waits
// for its end, and fails the test unless all of it arrived on one connection.
func (l *lab) stream(duration string, seconds int64) (wait func()) {
	l.t.Helper()
	cmd := l.command("client", program, "fetch", "--mptcp", "--json", "http://server/cbr?rate=15Mbit/s&duration="+duration)
	out := &strings.Builder{}
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	return func() {
		l.t.Helper()
		err := cmd.Wait()
		var r report
		if e := json.Unmarshal([]byte(out.String()), &r); err != nil || e != nil || !r.UsedMPTCP || r.Bytes != 15e6/8*seconds {
			l.t.Errorf("the stream: %+v, %v, %v", r, err, e)
		}
	}
}

func (l *lab) subflow(address string) func() (bool, string) {
	return l.socket("server", netnstest.Established, "["+address+"]:80")
}

// TestReloadOfAnASBR replaces an egress peer by another one and back while a stream uses every
// egress path.
func TestReloadOfAnASBR(t *testing.T) {
	t.Parallel()
	l := epe(t)
	wait := l.stream("12s", 12)
	for _, address := range []string{"2001:db8:1::a", "2001:db8:1::b"} {
		l.eventually("a subflow from "+address, 5*time.Second, l.subflow(address))
	}
	restore := l.edit("asbr2", "asbr", func(s section) {
		p := s["peers"].([]any)[0].(map[string]any)
		p["name"], p["asn"], p["address"], p["id"], p["table"], p["rt"] = "spare", 65009, "2001:db8:b::9", 2, 103, "65000:103"
	})
	l.reloaded("asbr2", "asbr", `egress peer "transit-b" removed`, `egress peer "spare" added`)
	if routes := l.ip("asbr2", "route show table all proto 116"); strings.Contains(routes, "fc00:2:1::") || strings.Contains(routes, "table 102") ||
		!strings.Contains(routes, "table 103") {
		t.Errorf("asbr2 has:\n%s", routes)
	}
	l.eventually("the server's EPE Route goes", 2*time.Second, l.shows(false, "2001:db8:c::/64", "server", "route show table 102"))

	// What is invalid, or needs a restart, changes nothing.
	undo := l.edit("asbr2", "asbr", func(s section) { s["prefixes"], s["asn"] = []string{"2001:db8:1::1/64"}, 0 })
	l.refused("asbr2", "asbr", "asbr.asn: must be")
	l.refused("asbr2", "asbr", "asbr.prefixes[0]: must be an IP prefix")
	undo()
	undo = l.edit("asbr2", "asbr", func(s section) { s["router_id"], s["peers"] = "10.0.0.99", []any{} })
	l.refused("asbr2", "asbr", "asbr.peers: must name")
	undo()
	undo = l.edit("asbr2", "asbr", func(s section) { s["router_id"] = "10.0.0.99" })
	l.refused("asbr2", "asbr", "router_id: cannot change from 10.0.0.2 to 10.0.0.99 while the daemon runs; a restart is needed")
	undo()
	l.reloaded("asbr2", "asbr", "no changes")

	restore()
	l.reloaded("asbr2", "asbr", `egress peer "spare" removed`, `egress peer "transit-b" added`)
	l.eventually("the EPE Route is back", 15*time.Second, l.shows(true, "2001:db8:c::/64", "server", "route show table 102"))
	l.eventually("the subflow is back", 5*time.Second, l.subflow("2001:db8:1::b"))
	wait()
	for _, d := range [][]string{{"asbr1", "asbr"}, {"asbr2", "asbr", "transit-b"}, {"reflector", "reflector"}, {"server", "edge"}} {
		l.kept(d[0], d[1], d[2:]...)
	}
	if routes := l.ip("asbr2", "route show table all proto 116"); strings.Contains(routes, "table 103") {
		t.Errorf("left on asbr2:\n%s", routes)
	}
}

// TestReloadOfAReflector adds and removes a client.
func TestReloadOfAReflector(t *testing.T) {
	t.Parallel()
	l := epe(t)
	wait := l.stream("3s", 3)
	restore := l.edit("reflector", "reflector", func(s section) {
		s["clients"] = append(s["clients"].([]any), map[string]any{"name": "server2", "address": "2001:db8:1::11"})
	})
	l.reloaded("reflector", "reflector", `session "server2" added`)
	restore()
	l.reloaded("reflector", "reflector", `session "server2" removed`)
	wait()
	l.kept("reflector", "reflector")
}

// TestReloadOfAnEdge gives an egress peer another address and table, removes it and adds it again
// while a stream uses every egress path.
func TestReloadOfAnEdge(t *testing.T) {
	t.Parallel()
	for manager, replace := range map[string][]string{
		"user":   nil,
		"kernel": {"      locators: [fc00::/16]\n", "      locators: [fc00::/16]\n      mptcp: {path_manager: kernel}\n"},
	} {
		t.Run(manager, func(t *testing.T) {
			t.Parallel()
			l := epe(t, replace...)
			wait := l.stream("14s", 14)
			for _, address := range []string{"2001:db8:1::a", "2001:db8:1::b"} {
				l.eventually("a subflow from "+address, 5*time.Second, l.subflow(address))
			}
			removed := func(address, table string) {
				t.Helper()
				state := l.ip("server", kernelState)
				if strings.Contains(state, address+"/128") || strings.Contains(state, "lookup "+table) || strings.Contains(state, "table "+table) ||
					strings.Contains(state, "from "+address+" ") {
					t.Errorf("%s or table %s is left on the server:\n%s", address, table, state)
				}
				if there, sockets := l.subflow(address)(); there {
					t.Errorf("a subflow from %s is left: %s", address, sockets)
				}
			}
			restore := l.edit("server", "edge", func(s section) {
				p := s["peers"].([]any)[1].(map[string]any)
				p["address"], p["table"] = "2001:db8:1::bb", 112
			})
			l.reloaded("server", "edge", `egress peer "transit-b" replaced`)
			l.eventually("the route in the other table", 5*time.Second, l.shows(true, "2001:db8:c::/64", "server", "route show table 112"))
			l.eventually("a subflow from the other address", 5*time.Second, l.subflow("2001:db8:1::bb"))
			removed("2001:db8:1::b", "102")

			l.edit("server", "edge", func(s section) { s["peers"] = s["peers"].([]any)[:1] })
			l.reloaded("server", "edge", `egress peer "transit-b" removed`)
			removed("2001:db8:1::bb", "112")

			undo := l.edit("server", "edge", func(s section) { s["locators"] = []string{"fd00::/16"} })
			l.refused("server", "edge", "locators: cannot change from")
			undo()

			restore()
			l.reloaded("server", "edge", `egress peer "transit-b" added`)
			l.eventually("the EPE Route is back", 5*time.Second, l.shows(true, "2001:db8:c::/64", "server", "route show table 102"))
			l.eventually("the subflow is back", 5*time.Second, l.subflow("2001:db8:1::b"))
			wait()
			l.kept("server", "edge")
			l.kept("reflector", "reflector")
		})
	}
}
