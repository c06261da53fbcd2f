package bgp

import (
	"context"
	"time"

	"github.com/osrg/gobgp/v4/api"

	"github.com/tabane/tabane/internal/fault"
)

// BFD ends a session when nothing was heard from the neighbour for Multiplier times Interval, and withdraws what was
// learned there (RFC 5880 section 6.8.4, RFC 5882 section 4.1): the neighbour died, or the way to it lost every packet.
// Both sides must ask for it, and be neighbours on a link (RFC 5881). The zero value is none; then the hold time decides.
type BFD struct {
	// Interval is how often we send, and how often the neighbour may send at most.
	Interval time.Duration `yaml:"interval"`
	// Multiplier is how many packets in a row may be lost; 0 is DefaultBFDMultiplier.
	Multiplier uint8 `yaml:"multiplier,omitempty"`
}

// DefaultBFDMultiplier is what operators use: one lost packet is noise, three are not.
const DefaultBFDMultiplier = 3

// Limits of what BFD may be asked for. A shorter interval would measure this process's scheduling; a multiplier of one
// would end a session for a single lost packet.
const (
	minBFDInterval   = 10 * time.Millisecond
	maxBFDInterval   = 10 * time.Second
	minBFDMultiplier = 2
)

// CheckBFD says what is wrong with b.
func CheckBFD(b BFD) fault.List {
	var faults fault.List
	if b == (BFD{}) {
		return nil
	}
	if b.Interval < minBFDInterval || b.Interval > maxBFDInterval || b.Interval%time.Microsecond != 0 {
		faults.Add("bfd.interval", "must be whole microseconds from %s to %s, got %s", minBFDInterval, maxBFDInterval, b.Interval)
	}
	if b.Multiplier != 0 && b.Multiplier < minBFDMultiplier {
		faults.Add("bfd.multiplier", "must be at least %d, got %d", minBFDMultiplier, b.Multiplier)
	}
	return faults
}

// config translates for GoBGP, whose intervals are microseconds; nil is none.
func (b BFD) config() *api.BfdPeerConfig {
	if b == (BFD{}) {
		return nil
	}
	if b.Multiplier == 0 {
		b.Multiplier = DefaultBFDMultiplier
	}
	interval := uint32(b.Interval / time.Microsecond)
	return &api.BfdPeerConfig{
		Enabled: true, DesiredMinimumTxInterval: interval, RequiredMinimumReceive: interval, DetectionMultiplier: uint32(b.Multiplier),
	}
}

// bfdUp says which neighbours are watched by BFD at the moment, by their address as GoBGP prints it.
func (s *Speaker) bfdUp() map[string]bool {
	up := map[string]bool{}
	s.server.ListBfdPeer(context.Background(), func(address string, state *api.BfdPeerState) {
		up[address] = state.SessionState == api.BfdSessionState_BFD_SESSION_STATE_UP
	})
	return up
}
