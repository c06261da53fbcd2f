package sealed

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/gateway/handshake"
)

const (
	// maxHandshakes is the number of initiations that wait for an exchange of keys, and of
	// responses; with busyHandshakes initiations waiting, senders have to prove their addresses
	// first.
	maxHandshakes  = 64
	busyHandshakes = 8
	// maxResponses is the number of responses of a peer that wait.
	maxResponses = 4
	// maxRepeats is how often an initiation is repeated to an address for cookies that came from
	// there: who sees it can forge one before the right one arrives. maxOtherPlaces is how often in
	// all to addresses that it was not sent to: a peer with several addresses may answer from
	// another one. maxPlaces bounds the addresses that cookies are known of.
	maxRepeats, maxOtherPlaces, maxPlaces = 4, 4, 256
	// staleTries is the number of initiations that are sent where an initiation with an old time
	// came from, so at most three times the bytes that came from there; the next one after
	// stalePause may have more. maxStale is the number of such times that are remembered: each has
	// an effect once.
	staleTries, stalePause, maxStale = 3, time.Second, 4096
)

// handshakeMessage is an initiation or response that waits for the exchange of keys. to is the
// address of this gateway that it was sent to, peer whom a response is from.
type handshakeMessage struct {
	line    *line
	message []byte
	from    netip.AddrPort
	to      netip.Addr
	peer    *peer
}

// exchanges are handshake messages that wait for the exchange of keys. Responses, which this
// gateway has asked for, and initiations take turns, so that a flood of either does not delay the
// other. Of initiations, those of senders with fewer waiting displace those of senders with more.
type exchanges struct {
	ready chan struct{} // has an element if something may wait

	mu          sync.Mutex
	initiations []handshakeMessage
	responses   []handshakeMessage
	turn        bool // the next one is an initiation
}

func newExchanges() *exchanges { return &exchanges{ready: make(chan struct{}, 1)} }

// busy reports whether many initiations wait.
func (x *exchanges) busy() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.initiations) >= busyHandshakes
}

// push adds a message if there is room, and returns how many are dropped: the message, or another
// one for it.
func (x *exchanges) push(h handshakeMessage) (queued bool, dropped int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case x.ready <- struct{}{}:
	default:
	}
	if h.peer != nil {
		waiting := 0
		for i := range x.responses {
			if x.responses[i].peer == h.peer {
				waiting++
			}
		}
		if waiting >= maxResponses || len(x.responses) >= maxHandshakes {
			return false, 1
		}
		x.responses = append(x.responses, h)
		return true, 0
	}
	if len(x.initiations) >= maxHandshakes {
		i := x.displacedLocked(handshake.Sender(h.from.Addr()))
		if i < 0 {
			return false, 1
		}
		x.initiations = slices.Delete(x.initiations, i, i+1)
		dropped = 1
	}
	x.initiations = append(x.initiations, h)
	return true, dropped
}

// displacedLocked returns the newest initiation of the sender of most, if it has at least two more
// than the sender of another one, else -1.
func (x *exchanges) displacedLocked(by netip.Prefix) int {
	waiting := map[netip.Prefix]int{}
	last := map[netip.Prefix]int{}
	for i := range x.initiations {
		s := handshake.Sender(x.initiations[i].from.Addr())
		waiting[s]++
		last[s] = i
	}
	busiest := by
	for s, n := range waiting {
		if n > waiting[busiest] {
			busiest = s
		}
	}
	if waiting[busiest] < waiting[by]+2 {
		return -1
	}
	return last[busiest]
}

// pop returns the message whose turn it is, and false if none waits.
func (x *exchanges) pop() (handshakeMessage, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := &x.responses
	if len(x.responses) == 0 || x.turn && len(x.initiations) > 0 {
		list = &x.initiations
	}
	x.turn = list == &x.responses
	if len(*list) == 0 {
		return handshakeMessage{}, false
	}
	h := (*list)[0]
	*list = slices.Delete(*list, 0, 1)
	return h, true
}
