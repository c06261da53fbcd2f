package acceptance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/seccomp/seccomptest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// TestWithoutIPv6: on a host on which IPv6 is switched off, and with a kernel that runs without it,
// daemons that need no IPv6 start with their status on 127.0.0.1, where the other commands find it,
// and the others say which key is to be set.
func TestWithoutIPv6(t *testing.T) {
	needLab(t)
	for name, inside := range map[string]func(t *testing.T, ns string, f func() error){
		"switched off": func(t *testing.T, ns string, f func() error) { netnstest.Do(t, ns, f) },
		"kernel without": func(t *testing.T, ns string, f func() error) {
			seccomptest.WithoutIPv6(t, func() error {
				file, err := os.Open("/run/netns/" + ns)
				if err != nil {
					return err
				}
				defer file.Close()
				return errors.Join(unix.Setns(int(file.Fd()), unix.CLONE_NEWNET), f()) // the thread ends
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			netnstest.Do(t, ns, func() error {
				lo, err := netlink.LinkByName("lo")
				return errors.Join(err, netns.Sysctl("net.ipv6.conf.all.disable_ipv6", "1"), netlink.LinkSetUp(lo))
			})
			dir := t.TempDir()
			file := func(text string) string {
				f := filepath.Join(dir, strings.Trim(strings.Fields(text)[0], ":")+".yaml")
				if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				return f
			}
			start := func(argv ...string) {
				cmd := exec.Command(program, argv...)
				log := new(strings.Builder)
				cmd.Stderr = log
				inside(t, ns, cmd.Start)
				t.Cleanup(func() {
					_ = cmd.Process.Signal(syscall.SIGTERM)
					_ = cmd.Wait()
					if t.Failed() {
						t.Logf("%s: %s", argv[0], log)
					}
				})
			}
			output := func(cmd *exec.Cmd) string {
				var text strings.Builder
				cmd.Stdout, cmd.Stderr = &text, &text
				inside(t, ns, cmd.Start)
				err := cmd.Wait()
				return fmt.Sprint(text.String(), err)
			}
			curl := programs.Need(t, "curl")
			get := func(url string) func() *exec.Cmd {
				return func() *exec.Cmd { return exec.Command(curl, "-s", "-o", "/dev/null", "-w", "%{http_code}", url) }
			}
			run := func(argv ...string) func() *exec.Cmd {
				return func() *exec.Cmd { return exec.Command(program, argv...) }
			}
			start("serve")
			start("dashboard")
			start("site", "-c", file("site:\n  listen:\n    - address: \"[::]:8081\"\n"))
			start("reflector", "-c", file("reflector:\n  asn: 65000\n  router_id: 192.0.2.1\n  address: 127.0.0.1\n  control: "+dir+"/r.sock\n  clients:\n    - {name: a, address: 127.0.0.2}\n"))
			for _, want := range []struct {
				text    string
				command func() *exec.Cmd
			}{
				{"200", get("http://127.0.0.1:8080/bytes/1000")},
				{"200", get("http://127.0.0.1:9121/")},
				{"200", get("http://127.0.0.1:8081/map/")},
				{"reflector at 127.0.0.1:9119", run("status", "reflector")},
				{"site at 127.0.0.1:9114", run("status", "site")},
				{"running site", run("doctor")},
				{"sysctl -w net.ipv6.conf.all.disable_ipv6=0", run("doctor")},
			} {
				var got string
				for deadline := time.Now().Add(10 * time.Second); !strings.Contains(got, want.text); time.Sleep(10 * time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatalf("%v: no %q: %s", want.command(), want.text, got)
					}
					got = output(want.command())
				}
			}
			edge := file("edge:\n  asn: 65000\n  router_id: 10.0.0.10\n  interface: lan\n  address: 2001:db8:1::10\n  prefix: 2001:db8:1::/64\n  control: " + dir + "/e.sock\n" +
				"  reflectors:\n    - address: 2001:db8:1::fe\n  locators: [fc00::/16]\n  peers:\n    - {name: a, rt: \"65000:101\", address: \"2001:db8:1::a\", table: 101}\n")
			if got := output(exec.Command(program, "edge", "-c", edge)); !strings.Contains(got, "IPv6 is switched off on this host: sysctl -w net.ipv6.conf.all.disable_ipv6=0") && !strings.Contains(got, "without IPv6") {
				t.Errorf("edge: %s", got)
			}
		})
	}
}

// TestStatusFollowsIPv6: a running daemon whose status is on ::1 can be asked for it also while
// IPv6 is switched off, and on ::1 again after that, whether it was started with IPv6 or without.
func TestStatusFollowsIPv6(t *testing.T) {
	needLab(t)
	for name, start := range map[string]string{"started with IPv6": "0", "started without": "1"} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			set := func(off string) {
				netnstest.Do(t, ns, func() error { return netns.Sysctl("net.ipv6.conf.all.disable_ipv6", off) })
			}
			netnstest.Do(t, ns, func() error {
				lo, err := netlink.LinkByName("lo")
				return errors.Join(err, netlink.LinkSetUp(lo))
			})
			set(start)
			file := filepath.Join(t.TempDir(), "site.yaml")
			if err := os.WriteFile(file, []byte("site:\n  listen:\n    - address: \"[::]:8081\"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(program, "site", "-c", file)
			log := new(strings.Builder)
			cmd.Stderr = log
			netnstest.Do(t, ns, cmd.Start)
			defer func() {
				_ = cmd.Process.Signal(syscall.SIGTERM)
				_ = cmd.Wait()
				if t.Failed() {
					t.Log(log)
				}
			}()
			curl := programs.Need(t, "curl")
			served := func(url string) {
				t.Helper()
				var got string
				for deadline := time.Now().Add(noticed); got != "200"; time.Sleep(10 * time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatalf("%s: %q", url, got)
					}
					c := exec.Command(curl, "-s", "-m", "2", "-o", "/dev/null", "-w", "%{http_code}", url)
					var out strings.Builder
					c.Stdout = &out
					netnstest.Do(t, ns, c.Start)
					_ = c.Wait()
					got = out.String()
				}
			}
			const over6, over4 = "http://[::1]:9114/status", "http://127.0.0.1:9114/status"
			at := map[string]string{"0": over6, "1": over4}
			served(at[start])
			for _, off := range []string{"1", "0", "1", "0"} {
				set(off)
				served(at[off])
			}
		})
	}
}
