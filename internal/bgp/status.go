package bgp

import (
	"log/slog"
	"time"
)

// SessionStatus is one session in a daemon's /status.
type SessionStatus struct {
	Neighbor string `json:"neighbor"`
	Up       bool   `json:"up"`
	// BFD is the state of the BFD session, "up" or "down"; empty where BFD is not configured.
	BFD string `json:"bfd,omitempty"`
	// Retained is the number of stale best paths that are kept after the session ended.
	Retained int `json:"retained,omitempty"`
	// Prefixes is the number of unicast routes that the neighbor advertises, accepted or not, and
	// Discarded counts those that were beyond its max_prefixes.
	Prefixes  int    `json:"prefixes"`
	Discarded uint64 `json:"discarded,omitempty"`
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
			Neighbor: n.Name, Up: n.Up, Retained: n.Retained, Prefixes: n.Prefixes, Discarded: n.Beyond, Reason: n.Down, Flaps: n.Flaps, LastReset: n.Reason,
			Uptime: int64(n.Uptime / time.Second), Sent: notificationText(n.Sent), Received: notificationText(n.Received),
		}
		switch {
		case n.BFDUp:
			all[i].BFD = "up"
		case n.BFD:
			all[i].BFD = "down"
		}
	}
	return all
}

// LogSessions logs each session that went up or down.
func LogSessions(log *slog.Logger, events []Event) {
	for _, e := range events {
		switch s, ok := e.(Session); {
		case ok && s.Up:
			log.Info("bgp session up", "neighbor", s.Neighbor)
		case ok:
			log.Warn("bgp session down", "neighbor", s.Neighbor, "reason", s.Reason)
		}
	}
}

// notificationText is empty for no message at all.
func notificationText(n Notification) string {
	if n.Code == 0 {
		return ""
	}
	return n.String()
}
