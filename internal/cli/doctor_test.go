package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/doctor"
	"github.com/tabane/tabane/internal/edge"
	"github.com/tabane/tabane/internal/health"
	"github.com/tabane/tabane/internal/pathmanager"
	"github.com/tabane/tabane/internal/reflector"
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
