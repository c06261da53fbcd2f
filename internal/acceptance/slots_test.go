package acceptance

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMoreEgressPeersThanSlots loses ten egress peers one by one, the best first, during a
// download: a connection has subflows to the best eight of those that are left, and continues to
// the end.
func TestMoreEgressPeersThanSlots(t *testing.T) {
	t.Parallel()
	l := up(t, "epe-peers", "server.edge.log", "asbr1.asbr.log")
	stream := l.command("client", program, "fetch", "--mptcp", "--json", "http://server/cbr?rate=1Mbit/s&duration=40s")
	if err := stream.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Wait() }()
	defer func() { _ = stream.Process.Kill() }()
	peers := []string{"a1", "b1", "a2", "b2", "a3", "b3", "a4", "b4", "a5", "b5"}
	used := func(want []string) func() (bool, string) {
		return func() (bool, string) {
			out, err := l.try("server", program, "status", "connections", "edge", "--json")
			var answer struct {
				Subflows []struct {
					Egress string `json:"egress"`
					Backup bool   `json:"backup"`
				} `json:"subflows"`
			}
			if err == nil {
				err = json.Unmarshal([]byte(out), &answer)
			}
			var got []string
			for _, s := range answer.Subflows {
				if s.Egress != "best path" && !s.Backup {
					got = append(got, s.Egress)
				}
			}
			slices.Sort(got)
			return err == nil && slices.Equal(got, want), fmt.Sprintf("%v, want %v, %v", got, want, err)
		}
	}
	for lost := range len(peers) - 1 {
		want := slices.Clone(peers[lost:min(lost+8, len(peers))])
		slices.Sort(want)
		l.eventually(fmt.Sprintf("with %d peers lost, the best others are used", lost), 10*time.Second, used(want))
		if lost < 2 {
			l.eventually("the status counts peers without a subflow", 5*time.Second,
				l.contains(true, fmt.Sprintf(`"waiting":{"connections":1,"client":"2001:db8:c::10","peers":%d,"slots":8`, len(peers)-lost), "server", program, "status", "--json", "edge"))
		}
		side, number := peers[lost][:1], strings.TrimPrefix(peers[lost][1:], "1")
		l.ip("transit-"+side, "link set csp"+number+" down")
	}
}
