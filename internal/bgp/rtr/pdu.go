package rtr

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/bgp/policy"
)

// Types of PDUs (RFC 8210 section 5).
const (
	typeSerialNotify  = 0
	typeSerialQuery   = 1
	typeResetQuery    = 2
	typeCacheResponse = 3
	typeIPv4Prefix    = 4
	typeIPv6Prefix    = 6
	typeEndOfData     = 7
	typeCacheReset    = 8
	typeRouterKey     = 9 // since version 1
	typeErrorReport   = 10
)

// Codes of Error Reports (RFC 8210 section 12).
const (
	codeCorruptData        = 0
	codeInternal           = 1
	codeNoData             = 2
	codeInvalidRequest     = 3
	codeUnsupportedVersion = 4
	codeUnsupportedType    = 5
	codeUnknownWithdrawal  = 6
	codeDuplicate          = 7
	codeUnexpectedVersion  = 8
)

const (
	headerLen = 8
	// maxPDU bounds PDUs of variable length, Router Keys and Error Reports, in bytes.
	maxPDU = 1 << 16
)

// pdu is a PDU from a cache. Which fields have a meaning depends on its type.
type pdu struct {
	version, typ uint8
	session      uint16 // Serial Notify, Cache Response, End of Data
	serial       uint32 // Serial Notify, End of Data
	// announce and vrp are a prefix.
	announce bool
	vrp      policy.VRP
	// timers are those of an End of Data since version 1.
	timers timers
	// code and text are those of an Error Report.
	code uint16
	text string
}

// timers are the intervals of RFC 8210 section 6.
type timers struct{ refresh, retry, expire time.Duration }

// protocolError is an error that is reported to the cache before the connection is closed.
type protocolError struct {
	code uint16
	text string
}

func (e *protocolError) Error() string { return e.text }

func protocolf(code uint16, format string, args ...any) error {
	return &protocolError{code, fmt.Sprintf(format, args...)}
}

// readPDU reads one PDU. Malformed ones are a *protocolError, but for Error Reports, whose errors
// are not reported (RFC 8210 section 5.11).
func readPDU(r *bufio.Reader) (pdu, error) {
	p, err := readAny(r)
	if bad := (*protocolError)(nil); errors.As(err, &bad) && p.typ == typeErrorReport {
		err = errors.New(bad.text)
	}
	return p, err
}

func readAny(r *bufio.Reader) (pdu, error) {
	var h [headerLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return pdu{}, err
	}
	p := pdu{version: h[0], typ: h[1], session: binary.BigEndian.Uint16(h[2:])}
	length := binary.BigEndian.Uint32(h[4:])
	if p.version > maxVersion && p.typ != typeSerialNotify {
		return p, protocolf(codeUnexpectedVersion, "version %d is not supported", p.version)
	}
	least, most := sizes(p.version, p.typ)
	switch {
	case most == 0:
		return p, protocolf(codeUnsupportedType, "PDU type %d is unknown in version %d", p.typ, p.version)
	case length < least || length > most:
		return p, protocolf(codeCorruptData, "PDU type %d has length %d", p.typ, length)
	}
	body := make([]byte, length-headerLen)
	if _, err := io.ReadFull(r, body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return p, err
	}
	return p, p.parse(body)
}

// sizes returns the bounds of the length of a PDU from a cache; 0 for one that a cache does not
// send.
func sizes(version, typ uint8) (least, most uint32) {
	switch typ {
	case typeSerialNotify:
		return 12, 12
	case typeCacheResponse, typeCacheReset:
		return headerLen, headerLen
	case typeIPv4Prefix:
		return 20, 20
	case typeIPv6Prefix:
		return 32, 32
	case typeEndOfData:
		if version == 0 {
			return 12, 12
		}
		return 24, 24
	case typeRouterKey:
		if version == 0 {
			return 0, 0
		}
		return 32, maxPDU
	case typeErrorReport:
		return 16, maxPDU
	}
	return 0, 0
}

// parse reads the body of a PDU whose length was checked.
func (p *pdu) parse(b []byte) error {
	switch p.typ {
	case typeSerialNotify:
		p.serial = binary.BigEndian.Uint32(b)
	case typeIPv4Prefix:
		return p.parsePrefix(b, netip.AddrFrom4([4]byte(b[4:])))
	case typeIPv6Prefix:
		return p.parsePrefix(b, netip.AddrFrom16([16]byte(b[4:])))
	case typeEndOfData:
		p.serial = binary.BigEndian.Uint32(b)
		if p.version == 0 {
			return nil
		}
		for i, t := range []*time.Duration{&p.timers.refresh, &p.timers.retry, &p.timers.expire} {
			*t = time.Duration(binary.BigEndian.Uint32(b[4+4*i:])) * time.Second
		}
	case typeErrorReport:
		p.code = p.session
		enclosed := uint64(binary.BigEndian.Uint32(b))
		if 8+enclosed > uint64(len(b)) {
			return protocolf(codeCorruptData, "Error Report encloses %d bytes in %d", enclosed, len(b))
		}
		rest := b[4+enclosed:]
		if text := uint64(binary.BigEndian.Uint32(rest)); text != uint64(len(rest)-4) {
			return protocolf(codeCorruptData, "Error Report has a text of %d bytes in %d", text, len(rest)-4)
		}
		p.text = string(rest[4:])
	}
	return nil
}

// parsePrefix reads an IPv4 or IPv6 Prefix: flags, length, maximum length, zero, address, AS
// number.
func (p *pdu) parsePrefix(b []byte, a netip.Addr) error {
	full := a.BitLen()
	length, longest := int(b[1]), int(b[2])
	p.announce = b[0]&1 == 1
	p.vrp = policy.VRP{Prefix: netip.PrefixFrom(a, length), MaxLength: b[2], ASN: binary.BigEndian.Uint32(b[4+full/8:])}
	if length > full || longest < length || longest > full || p.vrp.Prefix != p.vrp.Prefix.Masked() {
		return protocolf(codeCorruptData, "prefix %s/%d up to %d is impossible", a, length, longest)
	}
	return nil
}

// bounded returns the intervals in the bounds of RFC 8210 section 6.
func (t timers) bounded() timers {
	clamp := func(d, least, most time.Duration) time.Duration { return min(max(d, least), most) }
	return timers{
		refresh: clamp(t.refresh, minInterval, maxRefresh),
		retry:   clamp(t.retry, minInterval, maxRetry),
		expire:  clamp(t.expire, minExpire, maxExpire),
	}
}

// header returns the first 8 bytes of a PDU.
func header(version, typ uint8, session uint16, length int) []byte {
	b := append(make([]byte, 0, length), version, typ)
	b = binary.BigEndian.AppendUint16(b, session)
	return binary.BigEndian.AppendUint32(b, uint32(length))
}

func serialQuery(version uint8, session uint16, serial uint32) []byte {
	return binary.BigEndian.AppendUint32(header(version, typeSerialQuery, session, 12), serial)
}

func resetQuery(version uint8) []byte { return header(version, typeResetQuery, 0, headerLen) }

// errorReport returns an Error Report without the PDU that it is about.
func errorReport(version uint8, code uint16, text string) []byte {
	b := binary.BigEndian.AppendUint32(header(version, typeErrorReport, code, headerLen+8+len(text)), 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
	return append(b, text...)
}
