package sealed

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/reseq"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// TestCopiesUnderEarlierKeys: of two copies, one arrives before the keys change and one after.
func TestCopiesUnderEarlierKeys(t *testing.T) {
	born := func(at time.Duration) *keys { return &keys{Session: &handshake.Session{Born: at}} }
	first, second, third := born(1), born(2), born(3)
	var x receiving
	for i, a := range []struct {
		keys  *keys
		path  uint8
		seq   tunnel.Seq
		fresh bool
	}{
		{first, 0, 0, true}, {first, 1, 0, false}, {first, 0, 1, true},
		{second, 0, 0, true}, {first, 1, 1, false}, {first, 1, 2, true}, {first, 0, 2, false}, {second, 1, 0, false},
		{third, 0, 0, true}, {second, 1, 1, true}, {first, 1, 3, false},
	} {
		o := &opened{keys: a.keys, path: a.path, stamp: tunnel.Stamp{Lane: 9, Seq: a.seq, Copied: true}, packet: make([]byte, 20)}
		out, fresh := x.pushLocked(time.Second, o, reseq.Auto, nil)
		if fresh != a.fresh || fresh != (len(out) == 1) {
			t.Errorf("packet %d: fresh %v, %d delivered, want %v", i, fresh, len(out), a.fresh)
		}
	}
}

// TestHold: segments that only acknowledge are not held for their order where the rule is auto, and
// what is has another lane.
func TestHold(t *testing.T) {
	segment := func(six bool, flags byte, payload int) []byte {
		ip := inet.V4Len
		if six {
			ip = inet.V6Len
		}
		b := make([]byte, ip+32+payload) // with time stamps
		if six {
			b[0], b[6] = 0x60, unix.IPPROTO_TCP
		} else {
			b[0], b[9] = 0x45, unix.IPPROTO_TCP
		}
		b[ip+12], b[ip+13] = 8<<4, flags
		return b
	}
	const ack = 1 << 4
	datagram := segment(false, ack, 0)
	datagram[9] = unix.IPPROTO_UDP
	auto := routing{uniformHold: true}
	fixed := routing{uniformHold: true, policy: dataplane.Policy{{Resequence: dataplane.Resequence{Mode: dataplane.ResequenceFixed, Bound: time.Second}}}}
	for _, tt := range []struct {
		name   string
		routes *routing
		b      []byte
		want   reseq.Hold
	}{
		{"acknowledgment", &auto, segment(false, ack, 0), reseq.Off},
		{"acknowledgment over IPv6", &auto, segment(true, ack, 0), reseq.Off},
		{"data", &auto, segment(false, ack, 1), reseq.Auto},
		{"FIN", &auto, segment(true, ack|inet.FlagFIN, 0), reseq.Auto},
		{"SYN", &auto, segment(false, inet.FlagSYN, 0), reseq.Auto},
		{"datagram", &auto, datagram, reseq.Prompt},
		{"full datagram", &auto, append(datagram, make([]byte, fullSize-len(datagram))...), reseq.Auto},
		{"acknowledgment with a fixed time", &fixed, segment(false, ack, 0), reseq.Hold(time.Second)},
	} {
		if got := tt.routes.hold(tt.b); got != tt.want {
			t.Errorf("%s is held %v, want %v", tt.name, got, tt.want)
		}
		lane := laneOf(5, inet.IsAcknowledgment(tt.b))
		if own := lane != 5; own != inet.IsAcknowledgment(tt.b) {
			t.Errorf("%s has lane %d", tt.name, lane)
		}
	}
}
