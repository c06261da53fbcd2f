package sealed

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// TestSupersededAcknowledgment: an acknowledgment that waits beside a full packet of another flow
// is replaced by a later one, which has its number, so that the receiver misses none.
func TestSupersededAcknowledgment(t *testing.T) {
	const now, lane = time.Second, 1
	acknowledgment := func(number uint32) []byte {
		buf := make([]byte, tunnel.Offset+inet.V4Len+inet.TCPLen, 200)
		b := buf[tunnel.Offset:]
		b[0], b[3], b[9] = 0x45, inet.V4Len+inet.TCPLen, unix.IPPROTO_TCP
		b[inet.V4Len+12], b[inet.V4Len+13] = 5<<4, inet.FlagACK
		binary.BigEndian.PutUint32(b[inet.V4Len+8:], number)
		return buf
	}
	for _, tt := range []struct {
		name           string
		others, copied bool
		number         uint32
		want           bool
	}{
		{"beside a full packet", true, false, 2000, true},
		{"alone", false, false, 2000, false},
		{"a copy", true, true, 2000, false},
		{"a duplicate", true, false, 1000, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, r, k := paced(t)
			for range 2 { // the first is sent
				if tt.others {
					r.pacing.enqueue(p.out, 0, &queued{keys: k, lane: 2, seq: k.number.Assign(2)}, make([]byte, tunnel.Offset+1500, tunnel.Offset+1600), now)
				}
				r.pacing.enqueue(p.out, 0, &queued{keys: k, lane: lane, seq: k.number.Assign(lane), copied: tt.copied}, acknowledgment(1000), now)
			}
			q, length := r.links[0].queue, r.links[0].queue.Len()
			if got := r.pacing.replace(0, lane, acknowledgment(tt.number)); got != tt.want || q.Len() != length {
				t.Fatalf("replaced: %v, want %v; %d packets instead of %d", got, tt.want, q.Len(), length)
			}
			if p.counts.dropped[dropSuperseded].Load() != map[bool]uint64{true: 1}[tt.want] {
				t.Error("it is not counted")
			}
			last := uint32(0)
			q.Clear(func(q *queued) {
				if q.lane == lane {
					last = binary.BigEndian.Uint32(q.buf[tunnel.Offset+inet.V4Len+8:])
				}
			})
			if want := map[bool]uint32{true: tt.number, false: 1000}[tt.want]; last != want {
				t.Errorf("the last one acknowledges %d, want %d", last, want)
			}
		})
	}
}
