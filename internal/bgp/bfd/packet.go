package bfd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// state is the state of a session (RFC 5880 section 4.1).
type state uint8

const (
	stateAdminDown state = iota
	stateDown
	stateInit
	stateUp
)

func (s state) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

var stateNames = [...]string{"admin-down", "down", "init", "up"}

// diagnostic is why a session left the state Up (RFC 5880 section 4.1).
type diagnostic uint8

const (
	diagNone         diagnostic = 0
	diagTimeExpired  diagnostic = 1 // Control Detection Time Expired
	diagNeighborDown diagnostic = 3 // Neighbor Signaled Session Down
	diagAdminDown    diagnostic = 7 // Administratively Down
)

// packet is a control packet without authentication section (RFC 5880 section 4.1).
type packet struct {
	diag        diagnostic
	state       state
	poll, final bool
	multiplier  uint8
	my, your    uint32 // discriminators
	// desiredTx and requiredRx are whole microseconds.
	desiredTx, requiredRx time.Duration
}

const (
	packetSize = 24
	version    = 1

	flagPoll       = 0x20
	flagFinal      = 0x10
	flagAuth       = 0x04
	flagMultipoint = 0x01
)

func (p packet) encode() []byte {
	b := make([]byte, packetSize)
	b[0] = version<<5 | uint8(p.diag)
	b[1] = uint8(p.state) << 6
	if p.poll {
		b[1] |= flagPoll
	}
	if p.final {
		b[1] |= flagFinal
	}
	b[2], b[3] = p.multiplier, packetSize
	binary.BigEndian.PutUint32(b[4:], p.my)
	binary.BigEndian.PutUint32(b[8:], p.your)
	binary.BigEndian.PutUint32(b[12:], uint32(p.desiredTx/time.Microsecond))
	binary.BigEndian.PutUint32(b[16:], uint32(p.requiredRx/time.Microsecond))
	return b // Required Min Echo RX Interval is zero
}

// decode applies those checks of RFC 5880 section 6.8.6 that need no session.
func decode(b []byte) (packet, error) {
	switch {
	case len(b) < packetSize:
		return packet{}, fmt.Errorf("%d bytes are too short", len(b))
	case b[0]>>5 != version:
		return packet{}, fmt.Errorf("unknown version %d", b[0]>>5)
	case int(b[3]) < packetSize || int(b[3]) > len(b):
		return packet{}, fmt.Errorf("length field %d in %d bytes", b[3], len(b))
	case b[1]&flagAuth != 0:
		return packet{}, errors.New("they are authenticated, which is not supported: switch it off at the neighbor")
	case b[1]&flagMultipoint != 0:
		return packet{}, errors.New("multipoint bit is set")
	}
	p := packet{
		diag: diagnostic(b[0] & 0x1f), state: state(b[1] >> 6), poll: b[1]&flagPoll != 0, final: b[1]&flagFinal != 0,
		multiplier: b[2], my: binary.BigEndian.Uint32(b[4:]), your: binary.BigEndian.Uint32(b[8:]),
		desiredTx:  time.Duration(binary.BigEndian.Uint32(b[12:])) * time.Microsecond,
		requiredRx: time.Duration(binary.BigEndian.Uint32(b[16:])) * time.Microsecond,
	}
	switch {
	case p.multiplier == 0:
		return packet{}, errors.New("detection time multiplier is zero")
	case p.my == 0:
		return packet{}, errors.New("my discriminator is zero")
	case p.your == 0 && (p.state == stateInit || p.state == stateUp):
		return packet{}, fmt.Errorf("state %s with your discriminator zero", p.state)
	}
	return p, nil
}
