package pathmanager

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/tc"
	"github.com/tabane/tabane/internal/mptcp"
)

// killedIn is the variable with the network namespace in which TestKilledProcess runs a path
// manager.
const killedIn = "TABANE_TEST_PATHMANAGER"

// started runs a path manager on the site's server as edge does. stop ends it.
func started(server string, o Options) (m *Manager, stop func() error, err error) {
	o.Log = slog.New(slog.DiscardHandler)
	err = netns.Do(server, func() error {
		if m, err = New(o); err != nil {
			return err
		}
		return m.Start()
	})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- netns.Do(server, func() error { return m.Run(ctx) }) }()
	everywhere := addressingIPv6().anywhere
	m.SetRoutes([]Change{{0, everywhere, Route{State: RoutePresent}}, {1, everywhere, Route{State: RoutePresent}}})
	m.RoutesComplete()
	return m, func() error {
		cancel()
		return errors.Join(<-ended, netns.Do(server, func() error {
			// What examines the host may still be running.
			if now, err := mptcp.CurrentManager(); err != nil || now != mptcp.UserManager {
				return errors.Join(err, fmt.Errorf("at the end of Run the path manager is %q", now))
			}
			return m.Restore()
		}), m.Close())
	}, nil
}

// TestKilledProcess is the process of TestKilled: it says when a second path was opened, and is
// killed before that is judged.
func TestKilledProcess(t *testing.T) {
	server := os.Getenv(killedIn)
	if server == "" {
		return
	}
	m, _, err := started(server, Options{Peers: []Peer{{Address: onA.Addr()}, {Address: onB.Addr()}}, Overflow: true})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready")
	eventually(t, "a second path is judged", func() bool {
		list, _, err := m.List(t.Context(), 1)
		for _, s := range list {
			if err == nil && s.Use == selection.Overflow.String() {
				return true
			}
		}
		return false
	})
	fmt.Println("judging")
	time.Sleep(time.Minute) // killed meanwhile
}

// TestKilled kills a path manager with SIGKILL while it judges a path. The next one takes over,
// with the policy or without one, while the download goes on, and leaves nothing behind at its end.
func TestKilled(t *testing.T) {
	for _, overflows := range []bool{true, false} {
		s := newSite(t, addressingIPv6())
		if err := netns.Do(s.server, func() error {
			return tc.SetRate(lan, tc.Rate{Rate: 20e6, Burst: 5000, Queue: 100 * time.Millisecond})
		}); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestKilledProcess$", "-test.timeout=2m")
		cmd.Env = append(os.Environ(), killedIn+"="+s.server)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		expect := func(want string) {
			t.Helper()
			if !lines.Scan() || lines.Text() != want {
				_ = cmd.Process.Kill()
				rest, _ := io.ReadAll(out)
				t.Fatalf("the path manager says %q %s, want %q", lines.Text(), rest, want)
			}
		}
		expect("ready")
		client, server := s.connect()
		var received atomic.Int64
		var ended atomic.Bool
		var work sync.WaitGroup
		work.Go(func() {
			for b := make([]byte, 64<<10); !ended.Load(); {
				if _, err := server.Write(b); err != nil {
					return
				}
			}
		})
		work.Go(func() {
			for b := make([]byte, 64<<10); ; {
				n, err := client.Read(b)
				if received.Add(int64(n)); err != nil {
					return
				}
			}
		})
		expect("judging")
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed

		// flags returns the backup flags of the subflows, as the kernel has them.
		flags := func() map[mptcp.Ends]bool {
			all := map[mptcp.Ends]bool{}
			if err := s.kernel.Subflows(mptcp.IPv6, func(l mptcp.Subflow) { all[mptcp.Ends{Local: l.Local, Remote: l.Remote}] = l.BackupHere }); err != nil {
				t.Fatal(err)
			}
			return all
		}
		backups := func() (n int) {
			for _, backup := range flags() {
				if backup {
					n++
				}
			}
			return n
		}
		manager := func() (now mptcp.Manager) {
			if err := netns.Do(s.server, func() (err error) { now, err = mptcp.CurrentManager(); return err }); err != nil {
				t.Fatal(err)
			}
			return now
		}
		if backups() == 0 || manager() != mptcp.UserManager {
			t.Errorf("after the kill: flags %v, manager %v", flags(), manager())
		}
		next, stop, err := started(s.server, Options{Peers: s.peers, Overflow: overflows, Restarted: true})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the next one takes over", func() bool {
			list, _, err := next.List(t.Context(), 1)
			if err != nil || len(list) != 3 {
				return false
			}
			kernel, firsts, rests := flags(), 0, 0
			for _, l := range list {
				if kernel[mptcp.Ends{Local: l.Local, Remote: l.Remote}] != l.Backup {
					return false
				}
				if l.Use == selection.First.String() {
					firsts++
				}
				if l.Backup {
					rests++
				}
			}
			// Without a policy only the subflow on the default address rests.
			return overflows && firsts == 1 && rests > 0 && rests < 3 || !overflows && firsts == 0 && rests == 1
		})
		before := received.Load()
		eventually(t, "the download goes on", func() bool { return received.Load() > before+1<<20 })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "one subflow is left, which carries data", func() bool { return len(flags()) == 1 && backups() == 0 })
		if got := manager(); got != mptcp.KernelManager {
			t.Errorf("after the end: manager %v", got)
		}
		before = received.Load()
		eventually(t, "the download goes on without it", func() bool { return received.Load() > before+1<<20 })
		ended.Store(true)
		_ = client.Close()
		_ = server.Close()
		work.Wait()
	}
}
