package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/cli/doctor"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/epe/pathmanager"
	"github.com/tabane/tabane/internal/epe/reflector"
	"github.com/tabane/tabane/internal/gateway"
)

func TestRunning(t *testing.T) {
	server := func(peers int) edge.Status {
		s := edge.Status{Status: health.Status{Ready: true}}
		for i := range peers {
			s.Peers = append(s.Peers, edge.PeerStatus{Address: netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1))})
		}
		s.Peers = append(s.Peers, edge.PeerStatus{Address: netip.MustParseAddr("192.0.2.1")})
		return s
	}
	ill := reflector.Status{Status: health.Status{Ready: true, Degraded: true, Reason: "x drops: nft a; y is off: sysctl b"}}
	ill.Host = []health.Problem{{Text: "x drops", Remedy: "nft a"}, {Text: "y is off", Remedy: "sysctl b"}}
	crowded := server(10)
	crowded.Paths.Waiting = pathmanager.Waiting{Connections: 3, Peers: 9}
	for name, tt := range map[string]struct {
		status any
		err    error
		states []doctor.State
		want   string // in the last meaning
	}{
		"edge":      {server(8), nil, []doctor.State{doctor.OK, doctor.OK}, "8 IPv6 and 1 IPv4 EPE addresses: a connection uses up to 8"},
		"crowded":   {crowded, nil, []doctor.State{doctor.OK, doctor.Limited}, "and 3 connections have more"},
		"reflector": {reflector.Status{Status: health.Status{Ready: true, Degraded: true, Reason: "x is down"}}, nil, []doctor.State{doctor.Limited}, "is degraded: x is down"},
		"host":      {ill, nil, []doctor.State{doctor.Limited}, "is degraded: x drops; y is off"},
		"not ready": {reflector.Status{Status: health.Status{Reason: "x is down"}}, nil, []doctor.State{doctor.Limited}, "is not ready: x is down"},
		"error":     {nil, errors.New("timed out"), []doctor.State{doctor.Unknown}, "timed out"},
		"no status": {1, nil, []doctor.State{doctor.Unknown}, "cannot unmarshal"},
	} {
		body, err := json.Marshal(tt.status)
		if err != nil {
			t.Fatal(err)
		}
		found := running("edge", body, tt.err)
		var states []doctor.State
		for _, f := range found {
			states = append(states, f.State)
			if (f.State == doctor.Limited) != (f.Remedy != "") {
				t.Errorf("%s: remedy does not fit: %+v", name, f)
			}
		}
		if fmt.Sprint(states) != fmt.Sprint(tt.states) || !strings.Contains(found[len(found)-1].Meaning, tt.want) {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// TestRunningGateway: what drops packets of open peers is checked, and super-packets where these
// are sent on a path of known rate.
func TestRunningGateway(t *testing.T) {
	status := func(mode string, rates ...int64) []byte {
		s := gateway.Status{Status: health.Status{Ready: true}, LAN: []string{"no such interface"}, Peers: []gateway.PeerStatus{{Name: "hq", Mode: mode}, {Name: "home", Mode: "tunnel"}}}
		s.Paths = []gateway.PathStatus{{Peer: "home", Path: "slow", Rate: 1000}}
		for i, r := range rates {
			s.Paths = append(s.Paths, gateway.PathStatus{Peer: "hq", Path: fmt.Sprint("path", i), Rate: r})
		}
		body, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	for name, tt := range map[string]struct {
		body   []byte
		checks string
		want   string // in the first or last meaning
	}{
		"sealed":         {status("tunnel", 8e6), "running gateway, marks", "is ready"},
		"no rate":        {status("plain", 0), "running gateway, LAN, marks, firewall of open peers, tc programs, rp_filter while killed", "is ready"},
		"fast":           {status("plain", 1e9, 100e6), "running gateway, LAN, marks, firewall of open peers, tc programs, rp_filter while killed, super-packets", "none keeps a slow path"},
		"slow":           {status("plain", 1e9, 8e6), "running gateway, LAN, marks, firewall of open peers, tc programs, rp_filter while killed, super-packets", `interface "no such interface"`},
		"not of gateway": {[]byte(`{"ready":true,"paths":{}}`), "running gateway", "cannot unmarshal"},
	} {
		var checks []string
		found := running("gateway", tt.body, nil)
		for _, f := range found {
			checks = append(checks, f.Check)
		}
		if strings.Join(checks, ", ") != tt.checks || !strings.Contains(found[0].Meaning+found[len(found)-1].Meaning, tt.want) {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// TestFindingsInOrder: what is to be done comes first, with its remedy in a line of its own.
func TestFindingsInOrder(t *testing.T) {
	var out bytes.Buffer
	a := &App{Out: &out}
	if err := a.printFindings([]doctor.Finding{
		{Check: "fine", State: doctor.OK, Optional: true, Meaning: "works"},
		{Check: "LIA", State: doctor.Missing, Optional: true, Meaning: "no eBPF", Remedy: "mount"},
		{Check: "clock", State: doctor.Limited, Meaning: strings.Repeat("is not synchronized ", 6), Remedy: "run chrony"},
		{Check: "MPTCP", State: doctor.Missing, Needed: true, Meaning: "is off", Remedy: "sysctl -w net.mptcp.enabled=1"},
	}, nil, false); err != nil {
		t.Fatal(err)
	}
	const want = `MPTCP  missing  is off
                -> sysctl -w net.mptcp.enabled=1
LIA    missing  no eBPF (optional)
                -> mount
clock  limited  is not synchronized is not synchronized is not synchronized is
                not synchronized is not synchronized is not synchronized
                -> run chrony
fine   ok       works (optional)

required, but missing or unknown: MPTCP
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestFindingLines: a remedy is one line, whatever a daemon reports as one.
func TestFindingLines(t *testing.T) {
	var out bytes.Buffer
	a := &App{Out: &out}
	if err := a.printFindings([]doctor.Finding{{Check: "x", State: doctor.Limited, Meaning: "is\x1b[2J degraded", Remedy: "first\nsecond\x1b[0m"}}, nil, false); err != nil {
		t.Fatal(err)
	}
	if want := "-> first; second\ufffd[0m\n"; !strings.Contains(out.String(), want) || strings.Contains(out.String(), "\x1b") {
		t.Errorf("got %q, want %q in it", out.String(), want)
	}
}

// TestFindingsOfAGateway: on a host of a gateway, what it does not need is left out, or follows the
// rest.
func TestFindingsOfAGateway(t *testing.T) {
	for all, want := range map[bool]string{
		false: `clock  limited  is not synchronized
                -> run chrony
TUN    ok       works

this host has what is required by: gateway
(1 more checks, of what other daemons and tools need: tabane doctor --all)
`,
		true: `clock         limited  is not synchronized
                       -> run chrony
TUN           ok       works

not needed by gateway:
MPTCP limits  limited  none
                       -> ip mptcp limits set

this host has what is required by: gateway
`,
	} {
		var out bytes.Buffer
		a := &App{Out: &out}
		if err := a.printFindings([]doctor.Finding{
			{Check: "MPTCP limits", State: doctor.Limited, Unused: true, Meaning: "none", Remedy: "ip mptcp limits set"},
			{Check: "TUN", State: doctor.OK, Meaning: "works"},
			{Check: "clock", State: doctor.Limited, Meaning: "is not synchronized", Remedy: "run chrony"},
		}, []string{"gateway", "gateway", doctor.OpenGateway}, all); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("got\n%s\nwant\n%s", out.String(), want)
		}
	}
}

// TestConfiguredDaemons: a daemon with a file belongs to the host, whether the file is valid or
// not.
func TestConfiguredDaemons(t *testing.T) {
	dir := t.TempDir()
	example, err := os.ReadFile("../../examples/gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, text []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := configuredDaemons(dir); got != nil {
		t.Errorf("without a file: %q", got)
	}
	write("gateway.yaml", example)
	write("proxy.yaml", []byte("proxy: {"))
	write("asbr.yaml.example", []byte("asbr: {}"))
	if got := configuredDaemons(dir); !slices.Equal(got, []string{"gateway", "proxy"}) {
		t.Errorf("%q", got)
	}
	write("key", []byte(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, 32))))
	write("gateway.yaml", []byte(`gateway:
  key: key
  lan: {interfaces: [eth0], prefixes: [10.1.0.0/16]}
  paths: [{name: mpls, interface: eth1, rate: 100Mbit/s}]
  peers: [{name: hq, public_key: "mK0p0GnGHyHkjHs2r9WAJmeHAWXPRRJ1iGxxGEj5VUs=", endpoints: ["192.0.2.1:4790"], prefixes: [10.2.0.0/16], mode: plain}]
  policy: [{discipline: dq}]
`))
	if got := configuredDaemons(dir); !slices.Equal(got, []string{"gateway", doctor.OpenGateway, "proxy"}) {
		t.Errorf("with an open peer: %q", got)
	}
}
