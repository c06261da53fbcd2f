package bgp

import "log/slog"

// SessionStatus is one session as a daemon's status shows it.
type SessionStatus struct {
	Neighbor string `json:"neighbor"`
	Up       bool   `json:"up"`
	// BFD is "up" while BFD watches the neighbor, "down" while it should but the neighbor does not answer, and
	// empty where it was not asked for.
	BFD string `json:"bfd,omitempty"`
	// Retained is how many best paths are kept over the end of the session.
	Retained int `json:"retained,omitempty"`
	// Reason says why the session went down last.
	Reason string `json:"reason,omitempty"`
}

// Sessions says how the sessions are, by the neighbors' names.
func (s *Speaker) Sessions() []SessionStatus {
	states := s.Neighbors()
	all := make([]SessionStatus, len(states))
	for i, n := range states {
		all[i] = SessionStatus{Neighbor: n.Name, Up: n.Up, Retained: n.Retained}
		if !n.Up {
			all[i].Reason = n.Reason
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

// LogSessions logs each session that came or went.
func LogSessions(log *slog.Logger, events []Event) {
	for _, e := range events {
		switch s, ok := e.(Session); {
		case ok && s.Up:
			log.Info("session up", "neighbor", s.Neighbor)
		case ok:
			log.Warn("session down", "neighbor", s.Neighbor, "reason", s.Reason)
		}
	}
}
