package acceptance

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestAllianceFromOneFile: daemons with roles make an alliance behind NAT. A download of the leader uses
// the lines of all, goes on when a member leaves, and the member returns.
func TestAllianceFromOneFile(t *testing.T) {
	l := up(t, "gateway-alliance", "home.gateway.log", "leader.gateway.log", "member2.gateway.log")
	l.eventually("all paths are registered", 10*time.Second, l.registered("own", "member1", "member2"))
	cmd := l.command("leader", program, "fetch", "--json", "http://server/cbr?rate=12Mbit/s&duration=4s")
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	l.end("member2", "gateway", syscall.SIGTERM)
	l.eventually("the member has left", 2*time.Second, l.registered("own", "member1"))
	l.start("member2", "gateway")
	l.eventually("the member has returned", 10*time.Second, l.registered("own", "member1", "member2"))
	err := cmd.Wait()
	var r report
	if e := json.Unmarshal([]byte(out.String()), &r); err != nil || e != nil || r.Bytes != 6_000_000 {
		t.Errorf("the stream: %+v, %v, %v", r, err, e)
	}
	var s struct {
		Paths []struct {
			Path, Endpoint string
			CareOf         string `json:"care_of"`
			SentBytes      uint64 `json:"sent_bytes"`
		}
	}
	text := l.must("home", program, "status", "--json", "gateway")
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	outside := map[string][2]string{"own": {"198.51.100.10:", "192.168.0.2:"}, "member1": {"198.51.100.11:", "192.168.1.2:"}, "member2": {"198.51.100.12:", "192.168.2.2:"}}
	for _, p := range s.Paths {
		want := outside[p.Path]
		if !strings.HasPrefix(p.Endpoint, want[0]) || !strings.HasPrefix(p.CareOf, want[1]) || p.SentBytes < 100_000 {
			t.Errorf("path %+v, want packets sent to NAT %s and the care-of address %s", p, want[0], want[1])
		}
	}
	if len(s.Paths) != len(outside) {
		t.Errorf("the home agent has paths %+v", s.Paths)
	}
}

// registered is an eventually condition on which paths of the leader are up and registered.
func (l *lab) registered(want ...string) func() (bool, string) {
	return func() (bool, string) {
		var s struct {
			Paths []struct {
				Peer, Path, State string
				Lifetime          float64 `json:"lifetime_seconds"`
			}
		}
		text, _ := l.try("leader", program, "status", "--json", "gateway") // fails while degraded
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return false, text
		}
		var got []string
		for _, p := range s.Paths {
			if p.Peer == "home" && p.State == "up" && p.Lifetime > 0 {
				got = append(got, p.Path)
			}
		}
		slices.Sort(got)
		want := slices.Sorted(slices.Values(want))
		return slices.Equal(got, want), text
	}
}
