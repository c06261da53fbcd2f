package acceptance

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

var replacedBy = regexp.MustCompile(`replaced by another process.*pid=(\d+)`)

// TestProxyReplace: at SIGUSR2 another process takes over the listener, without refusing a
// connection; the connections of the first go on in it, and it ends with the last of them. A
// process that cannot start changes nothing.
func TestProxyReplace(t *testing.T) {
	t.Parallel()
	server := benchServer(t, echo)
	at, file := freeAddress(t), filepath.Join(t.TempDir(), "proxy.yaml")
	text := fmt.Sprintf("proxy:\n  control: %s\n  status: %s\n  listeners: [{listen: \"tcp://%s\", upstream: \"tcp://%s\"}]\n",
		filepath.Join(filepath.Dir(file), "s.sock"), freeAddress(t), at, server)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(text)
	// Both processes write it. With a pipe, the end of the first would be that of both.
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	output := func() string {
		b, err := os.ReadFile(log.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	defer func() {
		if t.Failed() {
			t.Logf("the proxies say:\n%s", output())
		}
	}()
	cmd := exec.Command(program, "proxy", "-c", file)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := make(chan error, 1)
	go func() { first <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended unless the test failed
	l := &lab{t: t}
	exchange := func(c net.Conn) error {
		if _, err := c.Write([]byte("ping")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 4))
		return err
	}
	once := func() error {
		c, err := net.Dial("tcp", at)
		if err != nil {
			return err
		}
		defer c.Close()
		return exchange(c)
	}
	l.eventually("the proxy listens", noticed, func() (bool, string) { err := once(); return err == nil, fmt.Sprint(err) })
	old, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	stays := func(when string) {
		t.Helper()
		if err := exchange(old); err != nil {
			t.Fatalf("%s, the connection of the first process: %v", when, err)
		}
	}
	stays("before")

	stop, refused := make(chan struct{}), make(chan error, 1)
	var made atomic.Int64
	go func() {
		defer close(refused)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := once(); err != nil {
				refused <- err
				return
			}
			made.Add(1)
		}
	}()
	signal := func(says string) {
		t.Helper()
		if err := cmd.Process.Signal(unix.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		l.eventually(says, noticed, func() (bool, string) {
			text := output()
			return regexp.MustCompile(says).MatchString(text), text
		})
		after := made.Load()
		l.eventually("more connections", noticed, func() (bool, string) { return made.Load() > after+50, "" })
		stays(says)
	}
	write("proxy: {listeners: []}\n")
	signal("not replaced, this process goes on")
	write(text)
	signal(replacedBy.String())
	pid, err := strconv.Atoi(replacedBy.FindStringSubmatch(output())[1])
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = unix.Kill(pid, unix.SIGTERM)
		l.eventually("the second process ends", noticed, func() (bool, string) {
			stat, gone := ended(pid)
			return gone, stat
		})
	}()
	select {
	case err := <-first:
		t.Fatalf("the first process ends before its connection: %v", err)
	default:
	}
	_ = old.Close()
	if err := <-first; err != nil {
		t.Errorf("the first process ends with %v", err)
	}
	after := made.Load()
	l.eventually("connections of the second process alone", noticed, func() (bool, string) { return made.Load() > after+50, "" })
	close(stop)
	if err := <-refused; err != nil {
		t.Errorf("after %d connections: %v", made.Load(), err)
	}
	if openFiles(pid) == 0 {
		t.Errorf("process %d is not there", pid)
	}
}
