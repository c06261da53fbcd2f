package dashboard

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// day is for how long the bytes of a gateway's path are added up, in minutes.
const day = 24 * 60

// maxLines bounds the paths of a gateway that are shown: each keeps samples and a day's minutes.
const maxLines = 64

// gatewayPath is a path to a peer as a gateway reports it.
type gatewayPath struct {
	Peer          string  `json:"peer"`
	Path          string  `json:"path"`
	Line          string  `json:"line"`
	Up            bool    `json:"up"`
	State         string  `json:"state"`
	Resting       string  `json:"resting"`
	Reason        string  `json:"reason"`
	RTT           float64 `json:"rtt_ms"`
	Loss          float64 `json:"loss"`
	SentBytes     uint64  `json:"sent_bytes"`
	ReceivedBytes uint64  `json:"received_bytes"`
	// Quota is what is used of that of the line, in words.
	Quota string `json:"-"`
}

// line is what the page shows of a gateway's path.
type line struct {
	Daemon  string  `json:"daemon"`
	Peer    string  `json:"peer"`
	Path    string  `json:"path"`
	Up      bool    `json:"up"`
	State   string  `json:"state"`
	Resting string  `json:"resting,omitempty"`
	Reason  string  `json:"reason,omitempty"`
	Quota   string  `json:"quota,omitempty"`
	RTT     float64 `json:"rtt_ms"`
	Loss    float64 `json:"loss"`
	// Out and In are the rates to the peer and from it, oldest sample first, in bits per second of
	// whole IP packets on the line.
	Out []float64 `json:"out"`
	In  []float64 `json:"in"`
	// SentBytes and ReceivedBytes are those of the last day, as far as the dashboard has run.
	SentBytes     uint64 `json:"sent_bytes"`
	ReceivedBytes uint64 `json:"received_bytes"`
}

// lines is the history of the paths of gateways.
type lines map[lineKey]*lineHistory

type lineKey struct{ daemon, peer, path string }

// lineHistory is what a path has carried.
type lineHistory struct {
	path  gatewayPath
	asked time.Time // when that was asked for
	rate  ring
	// minutes are the bytes of each minute, the last one in progress, from began on.
	minutes []carried
	began   time.Time
}

type carried struct{ sent, received uint64 }

// add takes the paths of a gateway's status, which was asked for and arrived at these times. Paths
// that it does not report any more are dropped.
func (l lines) add(daemon string, paths []gatewayPath, asked, now time.Time) {
	reported := map[lineKey]bool{}
	for _, p := range paths[:min(len(paths), maxLines)] {
		key := lineKey{daemon, p.Peer, p.Path}
		reported[key] = true
		h := l[key]
		if h == nil {
			l[key] = &lineHistory{path: p, asked: asked, began: now, minutes: make([]carried, 1)}
			continue
		}
		h.report(p, asked, now)
	}
	maps.DeleteFunc(l, func(key lineKey, _ *lineHistory) bool { return key.daemon == daemon && !reported[key] })
}

// silent adds a sample without traffic to the paths of a daemon that does not answer.
func (l lines) silent(daemon string) {
	for key, h := range l {
		if key.daemon == daemon {
			h.path.Up, h.path.State, h.path.Reason = false, "unknown", "the gateway does not answer"
			h.rate.add(0, 0)
		}
	}
}

// report adds a sample. A counter below its last value began again with the daemon. The daemon has
// read its counters at some time between request and answer, so the rate is that from the last
// request to this answer: after a slow answer it is too low, but never more than the line carries.
func (h *lineHistory) report(p gatewayPath, asked, now time.Time) {
	grown := func(old, now uint64) uint64 {
		if now < old {
			return now
		}
		return now - old
	}
	c := carried{grown(h.path.SentBytes, p.SentBytes), grown(h.path.ReceivedBytes, p.ReceivedBytes)}
	if seconds := now.Sub(h.asked).Seconds(); seconds > 0 {
		h.rate.add(float64(c.sent)*8/seconds, float64(c.received)*8/seconds)
	}
	h.path, h.asked = p, asked
	for ; now.Sub(h.began) >= time.Minute; h.began = h.began.Add(time.Minute) {
		if now.Sub(h.began) >= day*time.Minute { // nothing was reported for a day
			h.minutes, h.began = h.minutes[:0], now
		}
		h.minutes = append(h.minutes, carried{})
		h.minutes = h.minutes[max(0, len(h.minutes)-day):]
	}
	last := &h.minutes[len(h.minutes)-1]
	last.sent += c.sent
	last.received += c.received
}

// list returns all paths in the order of their names.
func (l lines) list() []line {
	all := []line{}
	for key, h := range l {
		p := h.path
		one := line{Daemon: key.daemon, Peer: key.peer, Path: key.path, Up: p.Up, State: p.State, Resting: p.Resting, Reason: p.Reason, Quota: p.Quota,
			RTT: p.RTT, Loss: p.Loss, Out: slices.Clone(h.rate.out), In: slices.Clone(h.rate.in)}
		for _, m := range h.minutes {
			one.SentBytes += m.sent
			one.ReceivedBytes += m.received
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b line) int {
		return cmp.Or(cmp.Compare(a.Daemon, b.Daemon), cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Path, b.Path))
	})
	return all
}
