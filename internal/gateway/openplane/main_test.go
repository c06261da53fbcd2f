package openplane

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// pinsOf is the variable that makes the test's program the daemon of a test: a plane with the pins.
const pinsOf = "TABANE_TEST_PINS"

func TestMain(m *testing.M) {
	if pins := os.Getenv(pinsOf); pins != "" {
		if err := runDaemon(pins); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		return
	}
	if pins := os.Getenv(gatewayOf); pins != "" {
		if err := runGateway(pins); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		return
	}
	netnstest.Main(m)
}

// slowOf makes the paths of that daemon slow.
const slowOf = "TABANE_TEST_SLOW"

// legacyOf makes that daemon attach its program with cls_bpf.
const legacyOf = "TABANE_TEST_LEGACY"

// The interfaces of that daemon are named as VLANs usually are.
const lanName = "eth0.100"

var lineNames = [...]string{"eth1.5", "eth1.10"}

// far is the prefix behind the peer of the daemon.
var far = netip.MustParsePrefix("10.2.0.0/16")

// sealed is a sealed plane that finds both paths a moment after its start, as sessions do.
type sealed struct{ open dataplane.Open }

func (s *sealed) Apply(dataplane.State) error {
	s.open.Measured("far", []dataplane.Measured{{}, {}}, 0)
	return nil
}
func (s *sealed) Status() dataplane.Status { return dataplane.Status{} }
func (s *sealed) Active(string)            {}

func (s *sealed) SendNATSession(string, tunnel.NATSession) bool { return false }

func (s *sealed) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(20 * time.Millisecond):
	}
	rate := unit.Bandwidth(1e9)
	if os.Getenv(slowOf) != "" {
		rate = 8e6
	}
	paths := make([]dataplane.Measured, len(lineNames))
	for i, name := range lineNames {
		paths[i] = dataplane.Measured{
			Path: sched.Path{Usable: true, Rate: rate, Room: 1 << 20}, Name: name, Interface: name,
			Remote: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, byte(i), 2}), 4790), MTU: 1500,
		}
	}
	s.open.Measured("far", paths, 0)
	os.Stdout.WriteString("up\n")
	<-ctx.Done()
	return nil
}

// runDaemon runs a plane until SIGTERM.
func runDaemon(pins string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	p, err := New(Options{
		Legacy: os.Getenv(legacyOf) != "", Pins: func() (string, error) { return pins, nil },
		Sealed: func(o dataplane.Open) (Sealed, error) { return &sealed{o}, nil },
	})
	if err != nil {
		return err
	}
	if p.unpinned != "" {
		return errors.New(p.unpinned)
	}
	if err := p.Apply(daemonState()); err != nil {
		return err
	}
	return p.Run(ctx)
}

// daemonState is what that daemon does.
func daemonState() dataplane.State {
	s := dataplane.State{
		LAN:    dataplane.LAN{Interfaces: []string{lanName}},
		Peers:  []dataplane.Peer{{Name: "far", Mode: dataplane.Plain, Prefixes: []netip.Prefix{far}}},
		Policy: dataplane.Policy{{Discipline: dataplane.Discipline{Name: dataplane.Ratio, Ratio: []int{1, 1}}}},
	}
	for _, name := range lineNames {
		s.Paths = append(s.Paths, dataplane.Path{Name: name, Interface: name, Usable: true})
	}
	return s
}
