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

	"github.com/tabane/tabane/internal/testkit/programs"
)

// strangers is a router with three neighbors that run BIRD: one is in another AS than the router's
// file says, one has another password, and one is to fall silent.
func strangers(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("name: strangers\nnodes:\n  r:\n    forwarding: true\n    router:\n      asn: 65000\n      router_id: 10.0.0.1\n      neighbors:\n")
	nodes := []struct {
		name        string
		says, is    int
		ours, their string
	}{
		{"asn", 65010, 65001, "", ""},
		{"md5", 65002, 65002, "secret", `password "other";`},
		{"silent", 65003, 65003, "", ""},
	}
	for i, n := range nodes {
		fmt.Fprintf(&text, "        - {name: %s, asn: %d, address: \"2001:db8:%d::2\", interface: to-%s", n.name, n.says, i, n.name)
		if n.ours != "" {
			fmt.Fprintf(&text, ", password: %s", n.ours)
		}
		text.WriteString("}\n")
	}
	for i, n := range nodes {
		fmt.Fprintf(&text, `  %s:
    ready: false
    exec: bird -f -c bird.conf -s bird.ctl
    files:
      bird.conf: |
        router id 10.0.1.%d;
        protocol device {}
        protocol bgp r {
          local as %d; neighbor 2001:db8:%d::1 as 65000; connect retry time 1; hold time 3; %s
          ipv6 { import all; export none; };
        }
`, n.name, i, n.is, i, n.their)
	}
	text.WriteString("links:\n")
	for i, n := range nodes {
		fmt.Fprintf(&text, "  to-%[1]s:\n    ends:\n      - {node: r, interface: to-%[1]s, addresses: [\"2001:db8:%[2]d::1/64\"]}\n"+
			"      - {node: %[1]s, interface: r, addresses: [\"2001:db8:%[2]d::2/64\"]}\n", n.name, i)
	}
	file := filepath.Join(t.TempDir(), "strangers.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestWhySessionsAreDown: status and log say what is wrong with a session to a BIRD that is
// configured otherwise than we are, or that falls silent.
func TestWhySessionsAreDown(t *testing.T) {
	t.Parallel()
	programs.Need(t, "bird")
	needLab(t)
	l := &lab{t: t, name: labPrefix() + "why"}
	t.Cleanup(func() {
		if out, err := exec.Command(program, "lab", "down", l.name).CombinedOutput(); err != nil {
			t.Errorf("lab down: %v\n%s", err, out)
		}
	})
	// Degraded, and so accepted: one of three sessions comes up.
	out, err := exec.Command(program, "lab", "up", strangers(t), "--name", l.name).CombinedOutput()
	if err != nil {
		t.Fatalf("lab up: %v\n%s", err, out)
	}
	status := func(want string) {
		t.Helper()
		l.eventually(want, 15*time.Second, l.contains(true, want, "r", program, "status", "router"))
	}
	status("NOTIFICATION sent: OPEN Message Error/Bad Peer AS (2/2): the neighbor's OPEN has another as number than 65010")
	status("md5 password differs from the neighbor's (TCPMD5Failure)")
	status("degraded  yes")
	bird := l.process("silent", "exec")
	if err := syscall.Kill(bird.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	status("hold timer expired")
	status("Hold Timer Expired (4/0)")
	log, err := os.ReadFile(filepath.Join("/run/tabane/lab", l.name, "r.router.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Bad Peer AS (2/2)", "md5 password differs", "hold timer expired"} {
		if !strings.Contains(string(log), want) {
			t.Errorf("the log has no %q:\n%s", want, log)
		}
	}
	if err := syscall.Kill(bird.PID, syscall.SIGCONT); err != nil {
		t.Error(err)
	}
}
