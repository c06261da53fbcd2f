package bgp

import (
	"strings"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
)

// SessionStatus is one session in a daemon's /status.
type SessionStatus struct {
	Neighbor string `json:"neighbor"`
	Up       bool   `json:"up"`
	// BFD is the state of the BFD session, "up" or "down"; empty where BFD is not configured.
	BFD string `json:"bfd,omitempty"`
	// Retained is the number of stale paths that are kept after the session ended, for so many
	// seconds at most, and Retention what ends that sooner.
	Retained        int    `json:"retained,omitempty"`
	RetainedSeconds int64  `json:"retained_seconds,omitempty"`
	Retention       string `json:"retention,omitempty"`
	// Prefixes is the number of unicast routes that the neighbor advertises, accepted or not, and
	// Discarded counts those that were beyond its max_prefixes.
	Prefixes int `json:"prefixes"`
	// VPNRoutes is the number of VPN routes that the neighbor advertises. Of all routes, Accepted
	// are accepted, and the others counted by the reason why they are refused, or of no use here.
	VPNRoutes int                  `json:"vpn_routes"`
	Accepted  int                  `json:"accepted"`
	Refused   map[RejectReason]int `json:"refused,omitempty"`
	Unused    map[RejectReason]int `json:"unused,omitempty"`
	Discarded uint64               `json:"discarded,omitempty"`
	// Uptime is the age of the session in seconds.
	Uptime int64 `json:"uptime_seconds"`
	// Flaps counts how often the session went down.
	Flaps uint64 `json:"flaps"`
	// Reason is why the session is not up: why it went down, or why it is not established.
	Reason string `json:"reason,omitempty"`
	// LastReset is why the session last went down.
	LastReset string `json:"last_reset,omitempty"`
	// Sent and Received are the last NOTIFICATION messages, as text with code and subcode.
	Sent     string `json:"notification_sent,omitempty"`
	Received string `json:"notification_received,omitempty"`
	// Faults counts the errors in received UPDATEs that did not end the session (RFC 7606), by what
	// was done about them; LastFault is the worst one of the last such UPDATE.
	Faults    map[string]uint64 `json:"update_faults"`
	LastFault string            `json:"last_fault,omitempty"`
	// MessagesSent and MessagesReceived count messages by type.
	MessagesSent     map[string]uint64 `json:"messages_sent"`
	MessagesReceived map[string]uint64 `json:"messages_received"`
}

// Problem describes why the session is down; it is empty if the session is up.
func (s SessionStatus) Problem() string {
	if s.Up {
		return ""
	}
	return "session with " + s.Neighbor + " is down (" + s.Reason + ")"
}

// Problems returns the problems of all sessions that are down.
func Problems(sessions []SessionStatus) (problems []string) {
	for _, s := range sessions {
		if !s.Up {
			problems = append(problems, s.Problem())
		}
	}
	return problems
}

// Sessions returns the state of all sessions for /status, sorted by the neighbors' names.
func (s *Speaker) Sessions() []SessionStatus {
	states := s.Neighbors()
	all := make([]SessionStatus, len(states))
	for i, n := range states {
		all[i] = SessionStatus{
			Neighbor: n.Name, Up: n.Up, Retained: n.Retained, RetainedSeconds: int64(n.RetainedFor / time.Second), Retention: n.RetainedUntil, Prefixes: n.Prefixes, Discarded: n.Beyond, Reason: n.Down, Flaps: n.Flaps, LastReset: n.Reason,
			Uptime: int64(n.Uptime / time.Second), Sent: notificationText(n.Sent), Received: notificationText(n.Received),
			Faults: faultCounts(n.Faults), LastFault: n.LastFault, MessagesSent: messageCounts(n.MessagesSent), MessagesReceived: messageCounts(n.MessagesReceived),
		}
		var sum Count
		for j, c := range n.Counts {
			sum.add(c)
			if n.Families[j].VPN() {
				all[i].VPNRoutes += c.Received
			}
		}
		all[i].Accepted, all[i].Refused, all[i].Unused = sum.Accepted, sum.Refused, sum.Unused
		switch {
		case n.BFDUp:
			all[i].BFD = "up"
		case n.BFD:
			all[i].BFD = "down"
		}
	}
	return all
}

// faultNames are the names of the actions in /status.
var faultNames = [message.Actions]string{
	message.Ignored: "ignored", message.Discarded: "attribute-discarded", message.TreatedAsWithdraw: "treated-as-withdraw",
}

func faultCounts(count [message.Actions]uint64) map[string]uint64 {
	m := make(map[string]uint64, len(count))
	for a, n := range count {
		m[faultNames[a]] = n
	}
	return m
}

func messageCounts(count map[message.Type]uint64) map[string]uint64 {
	m := make(map[string]uint64, len(count))
	for t, n := range count {
		m[strings.ToLower(t.String())] = n
	}
	return m
}

// notificationText is empty for no message at all.
func notificationText(n Notification) string {
	if n.Code == 0 {
		return ""
	}
	return n.String()
}
