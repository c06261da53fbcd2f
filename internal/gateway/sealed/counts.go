package sealed

import (
	"sync/atomic"

	"github.com/tabane/tabane/internal/gateway/dataplane"
)

// count counts packets and their bytes.
type count struct{ packets, bytes atomic.Uint64 }

func (c *count) add(packets, bytes int) {
	c.packets.Add(uint64(packets))
	c.bytes.Add(uint64(bytes))
}

func (c *count) value() dataplane.Count {
	return dataplane.Count{Packets: c.packets.Load(), Bytes: c.bytes.Load()}
}

// reason is why a packet or message was not carried.
type reason uint8

const (
	dropNoRoute reason = iota
	dropNoSession
	dropNoPath
	dropSend
	dropTooBig
	dropMalformed
	dropTruncated
	dropUnknownSession
	dropReplayed
	dropForged
	dropCookie
	dropSource
	dropDestination
	dropCongestion
	dropDuplicate
	dropStranger
	dropHandshake
	dropBusy
	dropDevice
	dropQueue
	dropUnexpected
	dropExhausted
	dropRegistration
	dropSuperseded
	reasons
)

// reasonNames are the reasons in status.
var reasonNames = [reasons]string{
	dropNoRoute: "no route", dropNoSession: "no session", dropNoPath: "no path", dropSend: "send failed", dropTooBig: "too big",
	dropMalformed: "malformed", dropTruncated: "truncated", dropUnknownSession: "unknown session", dropReplayed: "replayed",
	dropForged: "forged", dropCookie: "forged cookie", dropSource: "source not of peer", dropDestination: "destination not allowed",
	dropCongestion: "congestion mark not possible",
	dropDuplicate:  "duplicate", dropStranger: "stranger", dropHandshake: "handshake refused", dropBusy: "busy", dropDevice: "device refused",
	dropQueue: "queue of path", dropUnexpected: "unexpected record",
	dropExhausted: "counters used up", dropRegistration: "registration refused", dropSuperseded: "acknowledgment superseded",
}

type counters struct {
	received, delivered count
	dropped             [reasons]atomic.Uint64
}

func (c *counters) drop(r reason, n uint64) { c.dropped[r].Add(n) }
