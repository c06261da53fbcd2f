package acceptance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// nginxConf is what an nginx without the parameter multipath needs to run in a lab, with DIR in
// place of its directory.
const nginxConf = `daemon off;
pid DIR/nginx.pid;
error_log stderr;
events {}
http {
	access_log off;
	server {
		listen [::]:8080;
		root DIR;
	}
}
`

// TestNginx: an unchanged nginx serves over all egress paths with another congestion control than
// its namespace's, as with the drop-in of docs/congestion-control.md: the subflows that join have
// it, and so has the first one.
func TestNginx(t *testing.T) {
	t.Parallel()
	programs.Need(t, "nginx", "ss")
	l := epe(t)
	dir := t.TempDir()
	// Workers of nginx have another user.
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if info, err := os.Stat(d); err != nil || info.Mode().Perm()&1 == 0 && os.Chmod(d, 0o755) != nil {
			t.Fatal(d, err)
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, make([]byte, 20_000_000), 0o644); err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, []byte(strings.ReplaceAll(nginxConf, "DIR", dir)), 0o644); err != nil {
		t.Fatal(err)
	}
	other := "reno"
	if strings.TrimSpace(l.must("server", "sysctl", "-n", "net.ipv4.tcp_congestion_control")) == other {
		other = "cubic"
	}
	stop := l.host("server", program, "mptcpify", "--congestion", other, "--", "nginx", "-e", "stderr", "-c", conf)
	l.eventually("nginx listens", 10*time.Second, l.socket("server", netnstest.Listening, ":8080"))

	cmd := l.command("client", program, "fetch", "--mptcp", "http://server:8080/file")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b"} {
		l.eventually("a subflow from "+address+" with "+other, 5*time.Second, func() (bool, string) {
			out, err := l.try("server", "ss", "-HtinO", "state", "established")
			for line := range strings.Lines(out) {
				if strings.Contains(line, "["+address+"]:8080 ") && slices.Contains(strings.Fields(line), other) {
					return true, ""
				}
			}
			return false, fmt.Sprint(out, err)
		})
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	stop()
}
