package selection

// Reason is why a path carries data or rests.
type Reason uint8

// The reasons.
const (
	// Unused: the open paths suffice.
	Unused Reason = iota
	// First is the path that carries data while it suffices.
	First
	// Overflow: the other open paths are saturated.
	Overflow
	// Failover: an open path makes no progress, so all are open.
	Failover
	// Slow: its rate is too small to be worth its delay.
	Slow
	// Window: the receive window is too small for its delay.
	Window
	// NoGain: the connection carried less with it than without it.
	NoGain
	// Stalled: it made no progress in an earlier connection.
	Stalled
	// Broken: it carries handshakes and no data.
	Broken
	// OverCommit: it has carried its commit (Terms.Budget).
	OverCommit
	// UnderShare and OverShare: it has carried less, or more, than its share.
	UnderShare
	OverShare
)

// reasons are their names, in the status and, those of paths at rest, in the encoding of a Memory
// (docs/policies.md).
var reasons = [...]string{
	"unused", "first", "overflow", "failover", "slow", "window", "no gain", "stalled", "broken", "over commit", "under share", "over share",
}

func (r Reason) String() string {
	if int(r) < len(reasons) {
		return reasons[r]
	}
	return "unknown"
}

// Open reports whether a path with this reason carries data.
func (r Reason) Open() bool { return r == First || r == Overflow || r == Failover || r == UnderShare }

// fails reports whether the reason is that a path did not carry what it was given.
func (r Reason) fails() bool { return r == Stalled || r == Broken }
