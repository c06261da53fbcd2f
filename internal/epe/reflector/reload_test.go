package reflector

import (
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/bfd"
)

func TestDifference(t *testing.T) {
	base := func() Config {
		return Config{
			ASN: 65000, RouterID: netip.MustParseAddr("10.0.0.254"), Address: netip.MustParseAddr("2001:db8:1::fe"),
			Clients: []Client{
				{Name: "asbr1", Address: netip.MustParseAddr("2001:db8:1::1")},
				{Name: "server", Address: netip.MustParseAddr("2001:db8:1::10")},
			},
		}
	}
	for name, tt := range map[string]struct {
		change func(*Config)
		want   string
		faults string
	}{
		"nothing": {func(*Config) {}, "", ""},
		"client":  {func(c *Config) { c.Clients = c.Clients[:1] }, `session "server" removed`, ""},
		"replaced": {func(c *Config) {
			c.Clients[1] = Client{Name: "server2", Address: netip.MustParseAddr("2001:db8:1::11")}
		}, "session \"server\" removed\nsession \"server2\" added", ""},
		"bfd": {func(c *Config) { c.Clients[0].BFD = bfd.Config{Interval: time.Second} }, `session "asbr1" reset`, ""},
		"address": {func(c *Config) { c.Address = netip.MustParseAddr("2001:db8:1::fd") }, "",
			"address: cannot change from 2001:db8:1::fe to 2001:db8:1::fd while the daemon runs; a restart is needed"},
		"name": {func(c *Config) { c.Clients[0].Name = "asbr9" }, "",
			`clients[0].name: "asbr9" takes the address of "asbr1", whose session has to close first: reload once without it`},
	} {
		t.Run(name, func(t *testing.T) {
			now := base()
			tt.change(&now)
			if err := now.Check().Err(); err != nil {
				t.Fatal(err)
			}
			got, faults := difference(base(), now)
			if text := faults.Error(); text != tt.faults {
				t.Errorf("faults %q, want %q", text, tt.faults)
			}
			if lines := strings.Join(got.Lines(), "\n"); len(faults) == 0 && lines != tt.want {
				t.Errorf("got %q, want %q", lines, tt.want)
			}
		})
	}
}

// TestReloadBeforeRun: a reload between the start and Run, as by an early SIGHUP, is applied.
func TestReloadBeforeRun(t *testing.T) {
	config := Config{
		ASN: 65000, RouterID: netip.MustParseAddr("10.0.0.254"), Address: netip.MustParseAddr("::1"),
		Clients: []Client{{Name: "asbr1", Address: netip.MustParseAddr("2001:db8:1::1")}},
	}
	speaker, err := bgp.New(bgp.Options{ASN: config.ASN, RouterID: config.RouterID, Listen: []netip.Addr{config.Address}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := &Reflector{speaker: speaker, config: config}
	now := config
	now.Clients = append(slices.Clone(config.Clients), Client{Name: "server", Address: netip.MustParseAddr("2001:db8:1::10")})
	lines, err := r.Reload(now)
	if got := strings.Join(lines, "\n"); err != nil || got != `session "server" added` || !reflect.DeepEqual(r.config, now) {
		t.Errorf("got %q, %v, and %v", got, err, r.config)
	}
	now.ASN++
	if _, err := r.Reload(now); err == nil {
		t.Error("another AS number was accepted")
	}
}
