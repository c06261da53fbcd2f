package bgp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// bfdState is the state of a BFD session (RFC 5880 section 4.1).
type bfdState uint8

const (
	bfdAdminDown bfdState = iota
	bfdDown
	bfdInit
	bfdUp
)

func (s bfdState) String() string {
	if int(s) < len(bfdStateNames) {
		return bfdStateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

var bfdStateNames = [...]string{"admin-down", "down", "init", "up"}

// bfdDiag says why a session left the state Up (RFC 5880 section 4.1).
type bfdDiag uint8

const (
	bfdNoDiag      bfdDiag = 0
	bfdExpired     bfdDiag = 1
	bfdSignaled    bfdDiag = 3
	bfdDiagByAdmin bfdDiag = 7
)

// bfdPacket is a BFD control packet without authentication (RFC 5880 section 4.1).
type bfdPacket struct {
	diag        bfdDiag
	state       bfdState
	poll, final bool
	multiplier  uint8
	my, your    uint32 // discriminators
	// desiredTx and requiredRx are whole microseconds.
	desiredTx, requiredRx time.Duration
}

const (
	bfdPacketSize = 24
	bfdVersion    = 1

	bfdFlagPoll      = 0x20
	bfdFlagFinal     = 0x10
	bfdFlagAuth      = 0x04
	bfdFlagMultipath = 0x01
)

func (p bfdPacket) encode() []byte {
	b := make([]byte, bfdPacketSize)
	b[0] = bfdVersion<<5 | uint8(p.diag)
	b[1] = uint8(p.state) << 6
	if p.poll {
		b[1] |= bfdFlagPoll
	}
	if p.final {
		b[1] |= bfdFlagFinal
	}
	b[2], b[3] = p.multiplier, bfdPacketSize
	binary.BigEndian.PutUint32(b[4:], p.my)
	binary.BigEndian.PutUint32(b[8:], p.your)
	binary.BigEndian.PutUint32(b[12:], uint32(p.desiredTx/time.Microsecond))
	binary.BigEndian.PutUint32(b[16:], uint32(p.requiredRx/time.Microsecond))
	return b // no echo
}

// decodeBFD checks what can be checked without a session (RFC 5880 section 6.8.6).
func decodeBFD(b []byte) (bfdPacket, error) {
	switch {
	case len(b) < bfdPacketSize:
		return bfdPacket{}, fmt.Errorf("%d bytes are too short", len(b))
	case b[0]>>5 != bfdVersion:
		return bfdPacket{}, fmt.Errorf("version %d is not known", b[0]>>5)
	case int(b[3]) < bfdPacketSize || int(b[3]) > len(b):
		return bfdPacket{}, fmt.Errorf("length %d of %d bytes", b[3], len(b))
	case b[1]&bfdFlagAuth != 0:
		return bfdPacket{}, errors.New("authentication was not asked for")
	case b[1]&bfdFlagMultipath != 0:
		return bfdPacket{}, errors.New("multipoint bit is set")
	}
	p := bfdPacket{
		diag: bfdDiag(b[0] & 0x1f), state: bfdState(b[1] >> 6), poll: b[1]&bfdFlagPoll != 0, final: b[1]&bfdFlagFinal != 0,
		multiplier: b[2], my: binary.BigEndian.Uint32(b[4:]), your: binary.BigEndian.Uint32(b[8:]),
		desiredTx:  time.Duration(binary.BigEndian.Uint32(b[12:])) * time.Microsecond,
		requiredRx: time.Duration(binary.BigEndian.Uint32(b[16:])) * time.Microsecond,
	}
	switch {
	case p.multiplier == 0:
		return bfdPacket{}, errors.New("detection multiplier is zero")
	case p.my == 0:
		return bfdPacket{}, errors.New("discriminator is zero")
	case p.your == 0 && (p.state == bfdInit || p.state == bfdUp):
		return bfdPacket{}, fmt.Errorf("state %s without our discriminator", p.state)
	}
	return p, nil
}
