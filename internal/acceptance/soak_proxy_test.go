package acceptance

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// soakProxyTime and soakProxyFew are what a plain test does; with TABANE_SOAK it takes that
	// time, with soakProxyMany connections.
	soakProxyTime = 6 * time.Second
	soakProxyFew  = 200
	soakProxyMany = 5000
	// soakProxyPause is the longest time between two pieces of a connection, and soakProxyPiece the
	// longest of them in bytes.
	soakProxyPause = 4 * time.Second
	soakProxyPiece = 64 << 10
	// soakProxySpare are descriptors of the proxy that are not of connections: pipes, which come
	// and go.
	soakProxySpare = 200
)

// TestSoakProxy: with connections that come, exchange data, and end by FIN or RST, the proxy's
// memory and descriptors do not grow, and at the end no descriptor is left.
func TestSoakProxy(t *testing.T) {
	t.Parallel()
	length, connections := soakProxyTime, soakProxyFew
	if text := os.Getenv("TABANE_SOAK"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("TABANE_SOAK: %v", err)
		}
		connections = soakProxyMany
	}
	server := benchServer(t, echo)
	at, file := freeAddress(t), filepath.Join(t.TempDir(), "proxy.yaml")
	text := fmt.Sprintf("proxy:\n  control: %s\n  status: %s\n  listeners: [{listen: \"tcp://%s\", upstream: \"mptcp://%s\"}]\n",
		filepath.Join(filepath.Dir(file), "s.sock"), freeAddress(t), at, server)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "proxy", "-c", file)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("the proxy ends with %v:\n%s", err, &output)
		}
	}()
	l := &lab{t: t}
	l.eventually("the proxy listens", noticed, func() (bool, string) {
		c, err := net.Dial("tcp", at)
		if err != nil {
			return false, err.Error()
		}
		return c.Close() == nil, ""
	})
	pid := cmd.Process.Pid
	before := openFiles(pid)

	stop := make(chan struct{})
	var running sync.WaitGroup
	var ended atomic.Int64
	failed := make(chan error, connections)
	for range connections {
		running.Go(func() {
			for {
				on, err := soakConnection(at, stop)
				if err != nil {
					failed <- err
					return
				}
				ended.Add(1)
				if !on {
					return
				}
			}
		})
	}
	// The first third is the begin.
	var memory, files []int // kB, descriptors
	for begun := time.Now(); time.Since(begun) < length; time.Sleep(time.Second / 4) {
		if time.Since(begun) > length/3 {
			memory = append(memory, int(memoryOf(t, pid, "VmRSS")*1000))
			files = append(files, openFiles(pid))
		}
	}
	close(stop)
	running.Wait()
	close(failed)
	for err := range failed {
		t.Errorf("a connection fails, one of %d: %v", len(failed)+1, err)
		break
	}
	half := len(memory) / 2
	memory1, memory2 := median(memory[:half]), median(memory[half:])
	files1, files2 := median(files[:half]), median(files[half:])
	t.Logf("%d connections at a time, %d in %v: memory %d kB, then %d kB; descriptors %d, then %d (%d before)",
		connections, ended.Load(), length, memory1, memory2, files1, files2, before)
	if files2 > files1*5/4+soakProxySpare {
		t.Errorf("descriptors grow from %d to %d", files1, files2)
	}
	if memory2 > memory1*5/4+4000 {
		t.Errorf("memory grows from %d to %d kB", memory1, memory2)
	}
	l.eventually("the descriptors of connections are closed", noticed, func() (bool, string) {
		n := openFiles(pid)
		return n <= before+soakProxySpare/4, fmt.Sprintf("%d, before %d", n, before)
	})
}

// soakConnection exchanges some pieces of random data, and ends by FIN or RST. It reports whether
// another one may follow.
func soakConnection(at string, stop <-chan struct{}) (on bool, err error) {
	c, err := net.Dial("tcp", at)
	if err != nil {
		return false, err
	}
	defer c.Close()
	if rand.IntN(4) == 0 {
		if err := c.(*net.TCPConn).SetLinger(0); err != nil {
			return false, err
		}
	}
	for range 1 + rand.IntN(8) {
		piece := bytes.Repeat([]byte{byte(rand.IntN(256))}, 1+rand.IntN(soakProxyPiece))
		if _, err := c.Write(piece); err != nil {
			return false, err
		}
		back := make([]byte, len(piece))
		if _, err := io.ReadFull(c, back); err != nil {
			return false, err
		}
		if !slices.Equal(piece, back) {
			return false, fmt.Errorf("%d bytes come back different", len(piece))
		}
		select {
		case <-stop:
			return false, nil
		case <-time.After(time.Duration(rand.Int64N(int64(soakProxyPause)))):
		}
	}
	return true, nil
}
