package capture

import (
	"encoding/binary"
	"net/netip"
)

// The subtypes of the MPTCP option: RFC 8684 section 8, the same in RFC 6824.
const (
	subCapable = iota
	subJoin
	subDSS
	subAddAddr
	subRemoveAddr
	subPrio
	subFail
	subFastclose
	subReset
)

const optionMPTCP = 30

// options is the MPTCP options of one segment.
type options struct {
	// seen has a bit for each subtype that is present and well formed; broken means that a
	// subtype, or the list of options, is malformed.
	seen   uint16
	broken bool

	capable   capable
	join      join
	dss       dss
	addr      announced
	removed   []byte // address identifiers
	backup    bool   // of MP_PRIO
	failedAt  uint64 // the data sequence number of MP_FAIL
	resetWhy  uint8
	transient bool
}

func (o *options) has(subtype int) bool { return o.seen&(1<<subtype) != 0 }

type capable struct {
	version            uint8
	checksum           bool
	sender, receiver   uint64
	hasSender, hasBoth bool
	// length is the length of the mapping of the first data in version 1; 0 if there is none.
	length uint16
	sum    uint16
	hasSum bool
}

// join is MP_JOIN; only the one in a SYN has a token.
type join struct {
	syn    bool
	backup bool
	id     uint8
	token  uint32
}

// dss is a data sequence signal. Its 4-byte numbers have to be extended to 64 bits.
type dss struct {
	hasAck, ack8 bool
	ack          uint64
	hasMap, map8 bool
	dsn          uint64
	subflow      uint32 // relative to the initial sequence number
	length       uint16 // 0 means the infinite mapping
	sum          uint16
	hasSum       bool
	fin          bool
}

type announced struct {
	id   uint8
	addr netip.Addr
	port uint16
	echo bool
}

// parse parses the MPTCP options of a segment, up to the first malformed or truncated one in the
// option list.
func (o *options) parse(b []byte) {
	*o = options{}
	for len(b) > 0 {
		switch b[0] {
		case 0:
			return
		case 1:
			b = b[1:]
			continue
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			o.broken = true
			return
		}
		n := int(b[1])
		if b[0] == optionMPTCP {
			if n < 3 || !o.option(b[:n]) {
				o.broken = true
			}
		}
		b = b[n:]
	}
}

// option parses one MPTCP option and reports whether it is well formed. If a subtype occurs twice,
// the first one is used.
func (o *options) option(b []byte) bool {
	subtype := int(b[2] >> 4)
	if o.has(subtype) {
		return true
	}
	be := binary.BigEndian
	n := len(b)
	switch subtype {
	case subCapable:
		if n != 4 && n != 12 && n != 20 && n != 22 && n != 24 {
			return false
		}
		c := &o.capable
		c.version, c.checksum = b[2]&15, b[3]&0x80 != 0
		if n >= 12 {
			c.sender, c.hasSender = be.Uint64(b[4:]), true
		}
		if n >= 20 {
			c.receiver, c.hasBoth = be.Uint64(b[12:]), true
		}
		if n >= 22 {
			c.length = be.Uint16(b[20:])
		}
		if n == 24 {
			c.sum, c.hasSum = be.Uint16(b[22:]), true
		}
	case subJoin:
		switch n {
		case 12:
			o.join = join{syn: true, backup: b[2]&1 != 0, id: b[3], token: be.Uint32(b[4:])}
		case 16:
			o.join = join{backup: b[2]&1 != 0, id: b[3]}
		case 24:
		default:
			return false
		}
	case subDSS:
		if !o.dss.parse(b) {
			return false
		}
	case subAddAddr:
		if !o.addr.parse(b) {
			return false
		}
	case subRemoveAddr:
		if n < 4 {
			return false
		}
		o.removed = b[3:]
	case subPrio:
		if n != 3 && n != 4 {
			return false
		}
		o.backup = b[2]&1 != 0
	case subFail:
		if n != 12 {
			return false
		}
		o.failedAt = be.Uint64(b[4:])
	case subFastclose:
		if n != 12 {
			return false
		}
	case subReset:
		if n != 4 {
			return false
		}
		o.transient, o.resetWhy = b[2]&1 != 0, b[3]
	default:
		return false
	}
	o.seen |= 1 << subtype
	return true
}

// parse parses a DSS option (RFC 8684 section 3.3).
func (d *dss) parse(b []byte) bool {
	if len(b) < 4 {
		return false
	}
	flags, rest := b[3], b[4:]
	number := func(long bool) (uint64, bool) {
		n := 4
		if long {
			n = 8
		}
		if len(rest) < n {
			return 0, false
		}
		v := rest[:n]
		rest = rest[n:]
		if long {
			return binary.BigEndian.Uint64(v), true
		}
		return uint64(binary.BigEndian.Uint32(v)), true
	}
	v := dss{hasAck: flags&1 != 0, ack8: flags&2 != 0, hasMap: flags&4 != 0, map8: flags&8 != 0, fin: flags&16 != 0}
	ok := true
	if v.hasAck {
		v.ack, ok = number(v.ack8)
	}
	if ok && v.hasMap {
		v.dsn, ok = number(v.map8)
		if !ok || len(rest) < 6 || len(rest) != 6 && len(rest) != 8 { // with a checksum
			return false
		}
		v.subflow, v.length = binary.BigEndian.Uint32(rest), binary.BigEndian.Uint16(rest[4:])
		if len(rest) == 8 {
			v.sum, v.hasSum = binary.BigEndian.Uint16(rest[6:]), true
		}
	}
	if !ok {
		return false
	}
	*d = v
	return true
}

// parse parses ADD_ADDR of version 0, which has the IP version (RFC 6824 section 3.4.1), and of
// version 1, which has the echo flag (RFC 8684 section 3.4.1).
func (a *announced) parse(b []byte) bool {
	if len(b) < 4 {
		return false
	}
	flags, rest := b[2]&15, b[4:]
	*a = announced{id: b[3]}
	n := 0
	switch {
	case flags == 4 && (len(rest) == 4 || len(rest) == 6):
		n = 4
	case flags == 6 && (len(rest) == 16 || len(rest) == 18):
		n = 16
	case flags > 1:
		return false
	case flags == 1:
		a.echo = true
	}
	if n == 0 {
		// Unless it is an echo, an HMAC of 8 bytes follows.
		hash := 8
		if a.echo {
			hash = 0
		}
		switch len(rest) - hash {
		case 4, 6:
			n = 4
		case 16, 18:
			n = 16
		default:
			return false
		}
		rest = rest[:len(rest)-hash]
	}
	a.addr, _ = netip.AddrFromSlice(rest[:n])
	if len(rest) == n+2 {
		a.port = binary.BigEndian.Uint16(rest[n:])
	}
	return true
}
