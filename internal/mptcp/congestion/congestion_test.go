package congestion

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	program "github.com/tabane/tabane/internal/mptcp/ccbpf"
	"github.com/tabane/tabane/internal/mptcp/mptcptest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// host returns controls with a BPF file system and names of the test's own.
func host(t *testing.T) Host {
	t.Helper()
	netnstest.Need(t)
	if err := program.Supported(); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	return Host{Dir: bpftest.Mount(t) + "/cc", Prefix: fmt.Sprintf("e%d_", os.Getpid()%100000)}
}

func load(t *testing.T, h Host, name string) {
	t.Helper()
	if outcome, err := h.Load(name, Options{Pace: true}); err != nil || outcome != Loaded {
		t.Fatalf("load %s: %v, %v", name, outcome, err)
	}
}

func choose(t *testing.T, namespace, control string) {
	t.Helper()
	netnstest.Do(t, namespace, func() error { return netns.Sysctl(Sysctl, control) })
}

func status(t *testing.T, h Host) Status {
	t.Helper()
	s, err := h.Status()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestUse is the life of a control: chosen by a namespace, used by a connection of two subflows, in
// the way of unload, and removed by force.
func TestUse(t *testing.T) {
	h := host(t)
	load(t, h, "lia")
	lia := h.KernelName("lia")
	// A mount namespace that lacks the file system of the pins has the control as well.
	other := status(t, Host{Dir: t.TempDir(), Prefix: h.Prefix})
	if len(other.Controls) != 1 || other.Controls[0].Name != lia || !other.Controls[0].Elsewhere {
		t.Errorf("without its pins: %+v", other.Controls)
	}
	p := mptcptest.New(t, netnstest.New(t), netnstest.New(t), 2)
	early := p.Listen(t)
	before, err := func() (s string, err error) {
		err = netns.Do(p.Server, func() (err error) { s, err = netns.ReadSysctl(Sysctl); return err })
		return s, err
	}()
	if err != nil {
		t.Fatal(err)
	}
	choose(t, p.Server, lia)
	// The listener was opened before.
	s := status(t, h)
	if len(s.Listeners) != 1 || s.Listeners[0].Control != before || s.Listeners[0].Sysctl != lia || s.Listeners[0].Namespace != p.Server || s.Listeners[0].Address.Port() != mptcptest.Port {
		t.Errorf("listeners %+v, want one with %s", s.Listeners, before)
	}
	netnstest.Do(t, p.Server, func() error {
		l, err := h.Listeners()
		if len(l) != 1 || l[0].Control != before {
			t.Errorf("listeners %+v", l)
		}
		return err
	})
	if err := early.Close(); err != nil {
		t.Fatal(err)
	}

	server, client := p.Connect(t, p.Listen(t))
	stop := make(chan struct{})
	done := mptcptest.Pump(server, client, stop)
	// A busy machine may send nothing for a while, or close the listener late.
	for range 3000 {
		s = status(t, h)
		acked := len(s.Listeners) == 0 && len(s.Connections) == 1
		for _, c := range s.Connections {
			for _, f := range c.Subflows {
				acked = acked && f.Acks > 0 && f.MeanWindow >= 1
			}
		}
		if acked {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if len(s.Listeners) != 0 || len(s.Controls) != 1 || len(s.Connections) != 1 || len(s.Connections[0].Subflows) != 2 {
		t.Fatalf("status %+v", s)
	}
	if c := s.Controls[0]; c.Name != lia || !c.Current || c.Elsewhere || !c.Paced || c.Sockets != 2 || !slices.Equal(c.Namespaces, []string{p.Server}) {
		t.Errorf("control %+v", c)
	}
	for _, f := range s.Connections[0].Subflows {
		t.Logf("%+v", f)
		if f.Control != lia || f.Acks == 0 || f.MeanWindow < 1 || f.HighestWindow < f.Window || f.SRTT <= 0 || f.Limited < 0 || f.Limited > 1 {
			t.Errorf("subflow %+v", f)
		}
	}

	var used *InUse
	if _, err := h.Unload("lia", false); !errors.As(err, &used) || used.Control.Sockets != 2 || !strings.Contains(err.Error(), "2 connections") || !strings.Contains(err.Error(), p.Server) {
		t.Errorf("unload: %v", err)
	}
	reset, err := h.Unload("lia", true)
	if err != nil || !slices.Equal(reset, []string{p.Server}) {
		t.Errorf("unload by force: %q, %v", reset, err)
	}
	netnstest.Do(t, p.Server, func() error {
		if now, err := netns.ReadSysctl(Sysctl); err != nil || now != "cubic" {
			t.Errorf("the sysctl is %q, %v", now, err)
		}
		return nil
	})
	// The connection goes on with what is no longer loaded.
	if s := status(t, h); len(s.Controls) != 1 || s.Controls[0].Version != "" || s.Controls[0].Sockets != 2 {
		t.Errorf("controls %+v", s.Controls)
	}
	close(stop)
	<-done
	if _, err := h.Unload("lia", false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unload again: %v", err)
	}
}
