package bgp

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/session"
)

// Group accepts neighbors by the prefix that their addresses are in, unless a Neighbor has the
// address.
type Group struct {
	Name   string // unique among groups
	Prefix netip.Prefix
	// Limit is the highest number of neighbors.
	Limit int
	// Neighbor is what they have in common. Each gets the name of the group, a slash and its
	// address, and that address. The sessions are passive.
	Neighbor Neighbor
}

func (g Group) check(own uint32) error {
	if err := checkPrefix(g.Prefix); err != nil {
		return fmt.Errorf("prefix %q: %w", g.Prefix, err)
	}
	if g.Limit <= 0 {
		return fmt.Errorf("limit must be > 0, got %d", g.Limit)
	}
	return g.member(g.Prefix.Addr().Next()).check(own)
}

// member is the neighbor with an address.
func (g Group) member(a netip.Addr) Neighbor {
	n := g.Neighbor
	n.Name, n.Address, n.Passive = g.Name+"/"+a.String(), a, true
	return n
}

// linger is how long a neighbor of a group is kept after its session has ended, so that status
// shows why.
const linger = time.Minute

// openGroup is a Group that accepts neighbors, and those that it has. The speaker's calls guards
// it.
type openGroup struct {
	Group
	members map[netip.Addr]*neighbor
	full    bool // which was logged
	// refused counts neighbors that could not be added since that was last logged.
	refused int
	logged  time.Time
}

// AddGroup accepts the neighbors of a group from now on.
func (s *Speaker) AddGroup(conf Group) error {
	s.calls.Lock()
	defer s.calls.Unlock()
	err := s.usable()
	switch {
	case err != nil:
	case s.listener == nil:
		err = errors.New("the speaker does not listen")
	case s.groups[conf.Name] != nil:
		err = errors.New("name is in use")
	default:
		err = conf.check(s.opt.ASN)
	}
	if err == nil {
		g := &openGroup{Group: conf, members: map[netip.Addr]*neighbor{}}
		err = s.listener.AddGroup(conf.Prefix, conf.Neighbor.Password, func(_, remote netip.Addr) *session.Session { return s.join(g, remote) })
		if err == nil {
			s.groups[conf.Name] = g
		}
	}
	if err != nil {
		return fmt.Errorf("add group %q: %w", conf.Name, err)
	}
	return nil
}

// RemoveGroup closes the sessions of a group and accepts no further ones.
func (s *Speaker) RemoveGroup(name string) error {
	s.calls.Lock()
	defer s.calls.Unlock()
	g, err := s.group(name)
	if err != nil {
		return fmt.Errorf("remove group %q: %w", name, err)
	}
	delete(s.groups, name)
	s.listener.RemoveGroup(g.Prefix)
	for _, n := range g.members {
		s.remove(n)
	}
	return nil
}

// ChangeGroups replaces the groups of old by those of now. Groups that do not change, or only their
// limit, keep their sessions.
func (s *Speaker) ChangeGroups(old, now []Group) error {
	var errs []error
	for _, g := range old {
		if !slices.ContainsFunc(now, g.sameSessions) {
			errs = append(errs, s.RemoveGroup(g.Name))
		}
	}
	for _, g := range now {
		if slices.ContainsFunc(old, g.sameSessions) {
			errs = append(errs, s.setLimit(g.Name, g.Limit))
		} else {
			errs = append(errs, s.AddGroup(g))
		}
	}
	return errors.Join(errs...)
}

// setLimit changes the limit of a group. The neighbors beyond a lower one stay.
func (s *Speaker) setLimit(name string, limit int) error {
	s.calls.Lock()
	defer s.calls.Unlock()
	g, err := s.group(name)
	if err != nil {
		return fmt.Errorf("change limit of group %q: %w", name, err)
	}
	if g.Limit != limit {
		g.Limit, g.full = limit, false
	}
	return nil
}

// group returns an open group by its name. Callers hold calls.
func (s *Speaker) group(name string) (*openGroup, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	g := s.groups[name]
	if g == nil {
		return nil, errors.New("unknown group")
	}
	return g, nil
}

// CompareGroups describes each change from old to now in a line.
func CompareGroups(old, now []Group) []string {
	var lines []string
	has := func(list []Group, name string) bool {
		return slices.ContainsFunc(list, func(g Group) bool { return g.Name == name })
	}
	for _, g := range old {
		if !has(now, g.Name) {
			lines = append(lines, fmt.Sprintf("group %q removed", g.Name))
		}
	}
	for _, g := range now {
		switch {
		case !has(old, g.Name):
			lines = append(lines, fmt.Sprintf("group %q added", g.Name))
		case !slices.ContainsFunc(old, g.sameSessions):
			lines = append(lines, fmt.Sprintf("group %q reset", g.Name))
		case !slices.ContainsFunc(old, g.equal):
			lines = append(lines, fmt.Sprintf("limit of group %q changed", g.Name))
		}
	}
	return lines
}

func (g Group) equal(other Group) bool { return reflect.DeepEqual(g, other) }

// sameSessions reports whether the groups differ in their limit at most.
func (g Group) sameSessions(other Group) bool {
	g.Limit = other.Limit
	return g.equal(other)
}

// join returns the session of a neighbor that connects for the first time, or nil to reject it. It
// is called by the listener, which Stop waits for with calls held.
func (s *Speaker) join(g *openGroup, remote netip.Addr) *session.Session {
	for !s.calls.TryLock() {
		select {
		case <-s.done:
			return nil
		case <-time.After(time.Millisecond):
		}
	}
	defer s.calls.Unlock()
	if s.usable() != nil || s.groups[g.Name] != g {
		return nil
	}
	remote = remote.WithZone("")
	if n := g.members[remote]; n != nil {
		return n.session
	}
	if len(g.members) >= g.Limit && !s.evict(g) {
		if !g.full && time.Since(g.logged) >= faultPause {
			g.logged = time.Now()
			s.log.Warn("group is full, connections are rejected", "group", g.Name, "limit", g.Limit, "from", remote)
		}
		g.full = true
		return nil
	}
	g.full = false
	conf := g.member(remote)
	if err := s.addNeighbor(conf, g.Name); err != nil {
		if g.refused++; time.Since(g.logged) >= faultPause {
			s.log.Warn("neighbor of group rejected", "group", g.Name, "from", remote, "err", err, "times", g.refused)
			g.refused, g.logged = 0, time.Now()
		}
		return nil
	}
	s.mu.Lock()
	n := s.neighbors[conf.Name]
	s.mu.Unlock()
	g.members[remote] = n
	time.AfterFunc(linger, func() { s.leave(g, remote, n) })
	return n.session
}

// evict removes a neighbor whose session is not up, and reports whether there was one. Callers hold
// calls.
func (s *Speaker) evict(g *openGroup) bool {
	var oldest netip.Addr
	var since time.Time
	for a, n := range g.members {
		if st := n.session.Status(); st.State != session.StateEstablished && (since.IsZero() || st.Since.Before(since)) {
			oldest, since = a, st.Since
		}
	}
	if n := g.members[oldest]; n != nil {
		delete(g.members, oldest)
		s.remove(n)
		return true
	}
	return false
}

// dismiss removes the member of a group with an address, if there is one. Callers hold calls.
func (s *Speaker) dismiss(a netip.Addr) {
	for _, g := range s.groups {
		if n := g.members[a]; n != nil {
			delete(g.members, a)
			s.remove(n)
		}
	}
}

// leave removes a neighbor whose session has been down for a while, and otherwise looks again
// later.
func (s *Speaker) leave(g *openGroup, a netip.Addr, n *neighbor) {
	s.calls.Lock()
	defer s.calls.Unlock()
	if s.usable() != nil || g.members[a] != n {
		return
	}
	st := n.session.Status()
	if left := linger - time.Since(st.Since); st.State == session.StateEstablished || left > 0 {
		time.AfterFunc(max(time.Second, cmp.Or(max(0, left), linger)), func() { s.leave(g, a, n) })
		return
	}
	delete(g.members, a)
	s.remove(n)
}

// remove closes the session of a neighbor and deletes it. Callers hold calls.
func (s *Speaker) remove(n *neighbor) {
	s.bfd.Remove(n.conf.Name)
	n.stop(message.Notification{Code: message.CodeCease, Subcode: message.SubcodeDeconfigured}, "deleted")
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.neighbors, n.conf.Name)
}
