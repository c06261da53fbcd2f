package acceptance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// howToFile is a file of docs/howto.md.
func howToFile(t *testing.T, name string) string {
	t.Helper()
	file, err := filepath.Abs(filepath.Join("../../examples/howto", name))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// host starts a program on a host as systemd would, until the test or the returned function ends
// it.
func (l *lab) host(node string, argv ...string) (stop func()) {
	l.t.Helper()
	cmd := l.command(node, argv...)
	var diag strings.Builder
	cmd.Stdout, cmd.Stderr = &diag, &diag
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // with what it started
		_ = cmd.Wait()
		if l.t.Failed() {
			l.t.Logf("%s: %s:\n%s", node, strings.Join(argv, " "), &diag)
		}
	}
	l.t.Cleanup(stop)
	return stop
}

// TestHowTo does what docs/howto.md says, in its order and with its files, on hosts without
// daemons, and expects what it says: the start, content over both peers, an upgrade, and the
// removal, after which nothing is left.
func TestHowTo(t *testing.T) {
	t.Parallel()
	programs.Need(t, "vtysh")
	l := up(t, "testdata/howto.yaml")
	roles := map[string]string{"reflector1": "reflector", "asbr1": "asbr", "asbr2": "asbr", "server": "edge"}
	files := map[string]string{"reflector1": "reflector1.yaml", "asbr1": "asbr1.yaml", "asbr2": "asbr2.yaml", "server": "edge.yaml"}
	const everything = "rule; nexthop; route show proto 116; route show proto 117; route show table 101; route show table 102; addr show scope global; mptcp endpoint"
	before := map[string]string{}
	stops := map[string]func(){}
	dir := t.TempDir()
	// The hosts share their file system, and so need different sockets for commands.
	file := func(node string) string {
		t.Helper()
		b, err := os.ReadFile(howToFile(t, files[node]))
		if err != nil {
			t.Fatal(err)
		}
		copied := filepath.Join(dir, files[node])
		if err := os.WriteFile(copied, append(b, []byte("  control: "+filepath.Join(dir, node+".sock")+"\n")...), 0o600); err != nil {
			t.Fatal(err)
		}
		return copied
	}
	start := func(node string) {
		t.Helper()
		stops[node] = l.host(node, program, roles[node], "-c", file(node))
	}
	says := func(node, want string) {
		t.Helper()
		l.eventually(node+": "+want, 20*time.Second, l.contains(true, want, node, program, "status", roles[node]))
	}
	for node, file := range files {
		before[node] = l.ip(node, everything)
		if out, err := exec.Command(program, "check", "-c", howToFile(t, file)).CombinedOutput(); err != nil {
			t.Fatalf("check %s: %v: %s", file, err, out)
		}
	}

	// 1. Reflectors.
	start("reflector1")
	frr := `for dir in /usr/lib/frr /usr/libexec/frr /usr/sbin; do [ -x $dir/bgpd ] && break; done
options="--socket %[1]s/zserv.api --vty_socket %[1]s --vty_port 0 --log stdout"
touch %[1]s/zebra.conf
$dir/zebra --config_file %[1]s/zebra.conf --pid_file %[1]s/zebra.pid $options --user root --group frrvty &
until [ -S %[1]s/zserv.api ]; do sleep 0.05; done
exec $dir/bgpd --config_file %[2]s --pid_file %[1]s/bgpd.pid $options --skip_runas`
	l.host("reflector2", "sh", "-c", fmt.Sprintf(frr, dir, howToFile(t, "frr.conf")))

	// 2. Border routers, one after the other.
	for k, peer := range []string{"transit-a", "transit-b"} {
		node := fmt.Sprint("asbr", k+1)
		start(node)
		says(node, "ready     yes")
		l.eventually(peer+" has our prefix", 20*time.Second, l.shows(true, fmt.Sprintf("2001:db8:100::/48 via 2001:db8:200:%d::1", k+1), peer, "route"))
		l.eventually(node+" has the SID", 20*time.Second, l.shows(true, fmt.Sprintf("fc00:%d:1::", k+1), node, "route"))
	}

	// 3. The server, whose web server runs already.
	l.host("server", program, "serve", "--listen", "[::]:80")
	start("server")
	says("server", "ready     yes")
	for _, table := range []string{"101", "102"} {
		l.eventually("table "+table, 20*time.Second, l.shows(true, "2001:db8:c::/48", "server", "route show table "+table))
	}

	// 4. Content over both egress peers, from each reflector alone.
	content := func(what string) {
		t.Helper()
		wait := l.stream("12s", 12)
		for _, address := range []string{"2001:db8:100::a", "2001:db8:100::b"} {
			l.eventually(what+": a subflow from "+address, 10*time.Second, func() (bool, string) {
				ok, text := l.subflow(address)()
				if !ok {
					status, _ := l.try("server", program, "status", "--json", "edge")
					text += status
				}
				return ok, text
			})
		}
		wait()
	}
	l.eventually("the client reaches the server", 20*time.Second, func() (bool, string) {
		out, err := l.try("client", program, "fetch", "--limit", "2s", "http://server/bytes/1000")
		return err == nil, fmt.Sprint(out, err, l.ip("client-isp", "route"), l.ip("server", "route"), l.ip("asbr1", "route; rule"))
	})
	content("after the start")

	// 5. Upgrade of a border router, and of the reflector.
	wait := l.stream("10s", 10)
	l.eventually("a subflow through transit-a", 5*time.Second, l.subflow("2001:db8:100::a"))
	l.must("asbr1", program, "asbr", "drain", "--wait", "1s")
	l.eventually("nothing uses transit-a", 5*time.Second, l.shows(false, "2001:db8:c::/48", "server", "route show table 101"))
	stops["asbr1"]()
	start("asbr1")
	says("asbr1", "ready     yes")
	stops["reflector1"]()
	l.eventually("FRR alone keeps the routes", 5*time.Second, l.shows(true, "2001:db8:c::/48", "server", "route show table 102"))
	start("reflector1")
	says("reflector1", "ready     yes")
	wait()
	content("after the upgrade")

	// 6. Removal, the server first.
	for _, node := range []string{"server", "asbr1", "asbr2", "reflector1"} {
		stops[node]()
		if after := l.ip(node, everything); strings.Join(objects(after), "\n") != strings.Join(objects(before[node]), "\n") {
			t.Errorf("left on %s:\n%s", node, difference(objects(before[node]), objects(after)))
		}
	}
	if sockets, text := l.sockets("server", netnstest.Established); len(sockets) > 0 {
		t.Errorf("left on server: %s", text)
	}
}
