package openplane

import (
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	program "github.com/tabane/tabane/internal/gateway/openbpf"
)

// Wait implements dataplane.Open.
func (p *Plane) Wait(peer string, path int) time.Duration {
	t, ok := p.traffic(peer)
	if !ok || path < 0 || path >= program.MaxPaths {
		return 0
	}
	return t.Waits[path]
}

// traffic returns what was sent to a peer; false if it is none of the program, or the plane has
// stopped.
func (p *Plane) traffic(peer string) (program.Traffic, bool) {
	n, ok := (*p.numbers.Load())[peer]
	if !ok {
		return program.Traffic{}, false
	}
	t, err := p.program.Traffic(n)
	return t, err == nil
}

// Arrived implements dataplane.Open.
func (p *Plane) Arrived(peer string) [dataplane.MaxPaths]dataplane.Arrived {
	if all, ok := p.counted.arrived(peer); ok {
		return all
	}
	return p.tunnels.arrived(peer)
}

// Sent implements dataplane.Open.
func (p *Plane) Sent(peer string, path int) uint64 {
	t, ok := p.traffic(peer)
	if !ok || path < 0 || path >= program.MaxPaths {
		return 0
	}
	return t.Paths[path].Packets
}

// Marked implements dataplane.Open.
func (p *Plane) Marked(peer string, path int, sent uint64) { p.counted.mark(peer, path, sent) }

// active returns the peers that packets were sent to, or came from, since the call before.
func (p *Plane) active() (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, r := range p.peers {
		t, err := p.program.Traffic(r.number)
		if err != nil {
			continue
		}
		sum := uint64(0)
		arrived := p.Arrived(name)
		for i := range t.Paths {
			sum += t.Paths[i].Packets + arrived[i].Packets
		}
		if sum != r.before {
			names = append(names, name)
		}
		r.before = sum
	}
	return names
}

// NATFlows returns the NAT sessions whose last packets are most recent, at most so many, and the
// number of all.
func (p *Plane) NATFlows(most int) ([]dataplane.NATFlow, int) { return p.nat.list(most) }

// Status returns what both planes do now.
func (p *Plane) Status() dataplane.Status {
	s := p.sealed.Status()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return s
	}
	nat := p.nat.count()
	for i := range s.Peers {
		s.Peers[i].NAT = nat[s.Peers[i].Name]
		if r := p.peers[s.Peers[i].Name]; r != nil {
			arrived := p.Arrived(r.conf.Name)
			s.Received = add(s.Received, p.addTraffic(&s.Peers[i], r, &arrived))
			for _, a := range arrived {
				s.Delivered = add(s.Delivered, a.Count)
			}
		}
	}
	s.Unpinned = p.unpinned
	if left, err := p.program.Left(); err == nil && len(left) > 0 {
		s.Left = left
	}
	if refused, err := p.program.Refused(); err == nil {
		for reason, n := range refused {
			s.Dropped[reason] += n
		}
	}
	return s
}

func add(a, b dataplane.Count) dataplane.Count {
	return dataplane.Count{Packets: a.Packets + b.Packets, Bytes: a.Bytes + b.Bytes}
}

// addTraffic adds what was sent to a peer and what has arrived from it, and returns the sum of what
// was sent. The mutex is locked.
func (p *Plane) addTraffic(s *dataplane.PeerStatus, r *peer, arrived *[dataplane.MaxPaths]dataplane.Arrived) (sum dataplane.Count) {
	t, err := p.program.Traffic(r.number)
	if err != nil {
		return sum
	}
	for i := range r.paths {
		for j := range s.Links {
			if l := &s.Links[j]; l.Path == r.paths[i].Name {
				l.Sent, l.Received = add(l.Sent, t.Paths[i]), add(l.Received, arrived[i].Count)
				l.Missed += arrived[i].Lost
				l.Queue = t.Waits[i]
				switch {
				case l.Reason != "":
				case !r.ready():
					l.Reason = "the peer has not announced that it accepts packets without encryption"
				default:
					l.Reason = r.reasons[i]
				}
			}
		}
	}
	for i := range s.Policies {
		if i >= len(r.rules) {
			break
		}
		from, base, to := t.Rules[i], r.rules[i].base, &s.Policies[i]
		sent := dataplane.Count{Packets: from.Sent.Packets - base.Sent.Packets, Bytes: from.Sent.Bytes - base.Sent.Bytes}
		sum = add(sum, sent)
		to.Sent = add(to.Sent, sent)
		to.Copies += from.Copies - base.Copies
		if from.Sent != base.Sent {
			to.Using = nil
			for j := range r.paths {
				if from.Used.Has(j) {
					to.Using = append(to.Using, r.paths[j].Name)
				}
			}
		}
	}
	return sum
}
