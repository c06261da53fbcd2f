package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/kernel/netns"
)

// handled is what the runtime prints, with GODEBUG=inittrace=1, once SIGHUP is handled.
const handled = "init github.com/tabane/tabane/internal/kernel/sighup "

// starter starts the program in a network namespace of the test's own.
type starter struct {
	t         *testing.T
	namespace string
}

func newStarter(t *testing.T) starter {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s := starter{t, fmt.Sprintf("tabane-test-%d-signals", os.Getpid())}
	if err := netns.Create(s.namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Delete(s.namespace); err != nil {
			t.Error(err)
		}
	})
	if err := netns.Do(s.namespace, func() error {
		return netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo"}})
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs the program until it ends, has each line of its log applied, and returns how it ended.
func (s starter) run(args []string, started func(*os.Process), each func(*os.Process, string)) (log string, ended error) {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: self, Args: append([]string{"tabane"}, args...), Env: append(os.Environ(), "GODEBUG=inittrace=1")}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := netns.Do(s.namespace, cmd.Start); err != nil {
		s.t.Fatal(err)
	}
	guard := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer guard.Stop()
	started(cmd.Process)
	var text strings.Builder
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		fmt.Fprintln(&text, lines.Text())
		each(cmd.Process, lines.Text())
	}
	return text.String(), cmd.Wait()
}

func (s starter) signal(p *os.Process, sig syscall.Signal) {
	s.t.Helper()
	if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Error(err)
	}
}

// reflector writes a file and returns the arguments of a daemon that runs with it.
func (s starter) reflector() []string {
	s.t.Helper()
	dir := s.t.TempDir()
	file := filepath.Join(dir, "reflector.yaml")
	text := fmt.Sprintf(`reflector:
  asn: 65000
  router_id: 10.0.0.1
  address: ::1
  control: %s/control
  clients:
    - {name: nobody, address: "2001:db8::1"}
`, dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return []string{"reflector", "-c", file}
}

// endedBy returns the signal that ended the process, 0 if none did.
func endedBy(err error) syscall.Signal {
	var e *exec.ExitError
	if errors.As(err, &e) {
		if status := e.Sys().(syscall.WaitStatus); status.Signaled() {
			return status.Signal()
		}
	}
	return 0
}

// TestHangupBeforeMain: SIGHUP while packages are initialized is a reload after the start.
func TestHangupBeforeMain(t *testing.T) {
	s := newStarter(t)
	sent, reloaded := false, false
	log, ended := s.run(s.reflector(), func(*os.Process) {}, func(p *os.Process, line string) {
		switch {
		case strings.HasPrefix(line, "init github.com/tabane/tabane/") && !sent:
			// None of our packages may delay it.
			if !strings.HasPrefix(line, handled) {
				t.Errorf("before SIGHUP is handled: %s", line)
			}
			sent = true
			s.signal(p, syscall.SIGHUP)
		case strings.Contains(line, "configuration reloaded"):
			reloaded = true
			s.signal(p, syscall.SIGTERM)
		}
	})
	if ended != nil || !reloaded {
		t.Errorf("reloaded: %v, ended with %v:\n%s", reloaded, ended, log)
	}
}

// TestSignalsAtStart: from the moment at which it is handled, SIGHUP never terminates a daemon, nor
// before that if the parent ignores it. SIGTERM always ends it, without an error.
func TestSignalsAtStart(t *testing.T) {
	s := newStarter(t)
	args := s.reflector()
	for _, c := range []struct {
		name    string
		sig     syscall.Signal
		ignored bool
	}{{"SIGHUP", syscall.SIGHUP, false}, {"SIGHUP, ignored by the parent", syscall.SIGHUP, true}, {"SIGTERM", syscall.SIGTERM, false}} {
		t.Run(c.name, func(t *testing.T) {
			s := starter{t, s.namespace}
			if c.ignored {
				signal.Ignore(syscall.SIGHUP)
				defer signal.Reset(syscall.SIGHUP)
			}
			for _, delay := range []time.Duration{0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50} {
				stopped := false
				log, ended := s.run(args, func(p *os.Process) {
					time.Sleep(delay * time.Millisecond)
					s.signal(p, c.sig)
				}, func(p *os.Process, line string) {
					switch {
					case strings.Contains(line, "msg=started"):
						s.signal(p, syscall.SIGHUP)
					case strings.Contains(line, "configuration reloaded") && !stopped:
						stopped = true // a second SIGTERM ends it at once
						s.signal(p, syscall.SIGTERM)
					}
				})
				early := endedBy(ended) == c.sig && !c.ignored
				if c.sig == syscall.SIGHUP && strings.Contains(log, handled) {
					early = false
				}
				if ended != nil && !early {
					t.Errorf("%d ms after the start: ended with %v:\n%s", delay, ended, log)
				}
			}
		})
	}
}

// TestSignalTwice: timeout(1) signals its child and at once its process group, so that the child
// gets SIGTERM twice. That is one request to stop.
func TestSignalTwice(t *testing.T) {
	s := newStarter(t)
	args := s.reflector()
	for i := range 20 {
		stopping := false
		log, ended := s.run(args, func(*os.Process) {}, func(p *os.Process, line string) {
			if strings.Contains(line, "msg=started") && !stopping {
				stopping = true
				s.signal(p, syscall.SIGTERM)
				time.Sleep(time.Duration(i) * 20 * time.Microsecond)
				s.signal(p, syscall.SIGTERM)
			}
		})
		if ended != nil || !strings.Contains(log, "msg=stopped") {
			t.Fatalf("ended with %v:\n%s", ended, log)
		}
	}
}
