package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// A control message carries records instead of a packet. A record is its type (1 byte), the length
// of its body (2) and the body. Records whose type has the bit reliable begin with a number (4):
// they are repeated until an Ack has it, and each is processed once, in order. Records of unknown
// types are skipped, so that a newer gateway may send more.

// RecordType is the type of a record.
type RecordType uint8

const (
	// recordPadding is one zero byte, without a length.
	recordPadding RecordType = iota
	recordProbe
	recordAnswer
	recordReport
	recordAck
	recordProgress
	recordRequest
	recordArrived
	recordSent
	recordScout
	recordScouted
	recordRated
)

const reliable RecordType = 1 << 7

const (
	recordHello RecordType = reliable + iota
	recordPathAdd
	recordPathRemove
	recordNAT
	recordRegister
	recordBye
	recordRegistered
	recordOpen
	recordNATSession
	recordPathUse
)

// Reliable reports whether records of the type are acknowledged.
func (t RecordType) Reliable() bool { return t&reliable != 0 }

func (t RecordType) String() string {
	switch t {
	case recordPadding:
		return "padding"
	case recordProbe:
		return "probe"
	case recordAnswer:
		return "answer"
	case recordReport:
		return "report"
	case recordAck:
		return "ack"
	case recordProgress:
		return "progress"
	case recordRequest:
		return "request"
	case recordArrived:
		return "arrived"
	case recordSent:
		return "sent"
	case recordScout:
		return "scout"
	case recordScouted:
		return "scouted"
	case recordRated:
		return "rated"
	case recordHello:
		return "hello"
	case recordPathAdd:
		return "path add"
	case recordPathRemove:
		return "path remove"
	case recordNAT:
		return "nat"
	case recordRegister:
		return "register"
	case recordBye:
		return "bye"
	case recordRegistered:
		return "registered"
	case recordOpen:
		return "open"
	case recordNATSession:
		return "nat session"
	case recordPathUse:
		return "path use"
	}
	return fmt.Sprintf("record type %d", uint8(t))
}

// Record is one of Probe, Answer, Report, Ack, Progress, Request, Hello, PathAdd, PathRemove, NAT,
// Register, Registered, Bye, Open, NATSession, Arrived, Sent, Scout, Scouted, Rated, PathUse and
// Unknown.
type Record interface {
	Type() RecordType
	body(b []byte) []byte
}

// Probe asks for an Answer on the same path. The message may be padded, to find out what the path
// carries.
type Probe struct {
	// ID is random: an answer with it shows that the probe has arrived where it was sent to.
	ID uint64
}

// Answer answers a Probe.
type Answer struct {
	ID uint64
	// Sent is Stamp.Sent of the probe, Held the time from its arrival to this answer.
	Sent uint32
	Held time.Duration
	// Size is the length of the probe's message in bytes.
	Size uint16
}

// Report is what the receiver of a path has measured since the session began.
type Report struct {
	Path uint8
	// Next is the highest counter that arrived, plus 1; Lost how many before it did not.
	Next, Lost uint64
	// Bytes arrived, whole messages counted.
	Bytes uint64
	// Delay is the one-way delay in the receiver's time, which can be compared with that of other
	// paths; Base its minimum, Jitter and Spread its variation.
	Base, Delay, Jitter, Spread time.Duration
	// Standing is the queue on the path that no packet was without.
	Standing time.Duration
	// Late is how many packets of all paths were delivered after later ones.
	Late uint64
}

// ReportLen is the length of a Report in a message.
const ReportLen = 64

// Ack acknowledges all reliable records up to a number.
type Ack struct {
	Number uint32
}

// Progress means that no packet with a lower number will come in these lanes on the path of the
// message, which may be idle.
type Progress []Lane

// Lane is a lane with a number.
type Lane struct {
	Lane uint8
	Next Seq
}

// Request asks for messages that a path has lost, by their counters under the key of the session.
// The other gateway may send them again as they were, over any path.
type Request struct {
	Path uint8
	// Attempt is how often they have been asked for, from 1.
	Attempt uint8
	// Counters are in ascending order; the last is at most 2^16-1 above the first.
	Counters []uint64
}

// Arrived is what has arrived over a path in open messages. The counters only grow while the sender
// of the record runs.
type Arrived struct {
	Path uint8
	// Packets were expected; Lost of them did not arrive.
	Packets, Lost uint64
}

// Sent is how many packets of mode plain or nat were sent over the path of the message before it.
// The counter only grows while the sender of the record runs.
type Sent struct {
	Packets uint64
}

// Scout asks which line of the receiver it arrives at. It is sent over ScoutPath between lines that
// carry no path, and answered with a Scouted to where it came from.
type Scout struct {
	// ID is random: an answer with it shows that the lines reach each other.
	ID uint64
}

// ScoutPath is the number of the path that has scouts, and nothing else, between gateways that both
// have Scouts.
const ScoutPath = MaxPaths - 1

// Scouted answers a Scout.
type Scouted struct {
	ID uint64
	// Line is the number of the line that the Scout has arrived at, of the sender of this record.
	Line uint8
	// Up and Down are its rates from and to the sender of this record, UnknownRate if they are to
	// be measured.
	Up, Down unit.Bandwidth
	Name     string
}

// Rated follows a Scouted whose sender has measured the rate between the lines of the message, from
// itself to the receiver.
type Rated struct {
	// Rate is 0 if it could not be measured.
	Rate unit.Bandwidth
}

// Open means that the sender accepts open messages with a cookie.
type Open struct {
	Cookie uint64
}

// Hello is the first reliable record of a session.
type Hello struct {
	// Features are bits, such as Scouts. Those that nobody has defined yet are 0.
	Features uint32
	// Endpoints: the sender has addresses of the receiver in its configuration.
	Endpoints bool
}

// Scouts is the feature of a gateway that answers scouts, and has no path with the number
// ScoutPath.
const Scouts uint32 = 1 << 0

// Uses is the feature of a gateway that knows PathUse.
const Uses uint32 = 1 << 1

// PathAdd describes a path that the sender of the record uses.
type PathAdd struct {
	Path uint8
	// Up and Down are the rates from and to the sender of the record. 0: nothing is carried;
	// Unknown rates are unit.Bandwidth(UnknownRate).
	Up, Down unit.Bandwidth
	Cost     int32
	// Strict: the rates are never to be exceeded.
	Strict bool
	Name   string
}

// UnknownRate is the rate of a path that is to be measured.
const UnknownRate unit.Bandwidth = math.MaxInt64

// MaxRate is the highest rate that a record may have otherwise: sums and multiples of it fit 63
// bits.
const MaxRate = 1000 * unit.TbitPerSecond

// PathRemove ends a path.
type PathRemove struct {
	Path uint8
}

// NAT reports to the other gateway the address from which its packets arrive on a path.
type NAT struct {
	Path uint8
	Seen netip.AddrPort
}

// Register asks a home agent to send over a path, whose end is a care-of address of the sender or
// of a member, or a member to relay messages of the sender to a home agent (RFC 5944 section 3.3,
// RFC 5648).
type Register struct {
	Path uint8
	// CareOf is the address as the sender has it, unspecified if it does not. HomeAgent is set in a
	// request to a member.
	CareOf, HomeAgent netip.AddrPort
	Lifetime          time.Duration // in whole seconds, 0 withdraws the registration
	// Up and Down are the rates from and to the sender of the request.
	Up, Down unit.Bandwidth
	Cost     int32
	// Strict: the rates are never to be exceeded. Open: a member is to relay open messages, too.
	Strict, Open bool
}

// Registered answers a Register. A member also sends it when it cannot relay any longer.
type Registered struct {
	Path uint8
	Code Code
	// CareOf is the address that is registered: of a home agent, the one that it sends to; of a
	// member, that of the socket that relays.
	CareOf   netip.AddrPort
	Lifetime time.Duration // in whole seconds, 0 if nothing is registered
	// Up and Down are the rates from and to the sender of the request that are carried.
	Up, Down unit.Bandwidth
	Cost     int32
	// Open: the member relays open messages, too.
	Open bool
}

// Code is the result of a request, with the numbers of RFC 5944 section 3.4.
type Code uint8

const (
	Accepted Code = 0
	// Codes of members.
	MemberProhibited  Code = 65
	MemberResources   Code = 66
	MemberMalformed   Code = 70
	MemberSealedOnly  Code = 72
	MemberUnreachable Code = 80
	// Codes of home agents.
	HomeProhibited Code = 129
	HomeResources  Code = 130
	HomeMalformed  Code = 134
)

func (c Code) String() string {
	switch c {
	case Accepted:
		return "accepted"
	case MemberProhibited, HomeProhibited:
		return "administratively prohibited"
	case MemberResources, HomeResources:
		return "too many registrations"
	case MemberMalformed, HomeMalformed:
		return "malformed request"
	case MemberSealedOnly:
		return "member does not relay open messages"
	case MemberUnreachable:
		return "line is down"
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// PathUse is when packets are to be sent on a path, as far as the line of the sender is concerned.
type PathUse struct {
	Path uint8
	// Backup: only while no other path can carry them. Full: also while the others are full. Spent:
	// never.
	Backup, Full, Spent bool
	// Interval is the time within which the path is to be found dead while it carries no packets, 0
	// for the default. It is sent in milliseconds.
	Interval time.Duration
}

// MinInterval and MaxInterval bound PathUse.Interval.
const MinInterval, MaxInterval = 5 * time.Second, time.Hour

// Bye ends the session.
type Bye struct{}

// Unknown is a record of a type that this version does not know.
type Unknown struct {
	Kind RecordType
}

func (Probe) Type() RecordType      { return recordProbe }
func (Answer) Type() RecordType     { return recordAnswer }
func (Report) Type() RecordType     { return recordReport }
func (Ack) Type() RecordType        { return recordAck }
func (Progress) Type() RecordType   { return recordProgress }
func (Request) Type() RecordType    { return recordRequest }
func (Hello) Type() RecordType      { return recordHello }
func (PathAdd) Type() RecordType    { return recordPathAdd }
func (PathRemove) Type() RecordType { return recordPathRemove }
func (NAT) Type() RecordType        { return recordNAT }
func (Register) Type() RecordType   { return recordRegister }
func (Registered) Type() RecordType { return recordRegistered }
func (Bye) Type() RecordType        { return recordBye }
func (Arrived) Type() RecordType    { return recordArrived }
func (Sent) Type() RecordType       { return recordSent }
func (Open) Type() RecordType       { return recordOpen }
func (NATSession) Type() RecordType { return recordNATSession }
func (PathUse) Type() RecordType    { return recordPathUse }
func (Scout) Type() RecordType      { return recordScout }
func (Scouted) Type() RecordType    { return recordScouted }
func (Rated) Type() RecordType      { return recordRated }
func (u Unknown) Type() RecordType  { return u.Kind }

var be = binary.BigEndian

func (r Probe) body(b []byte) []byte { return be.AppendUint64(b, r.ID) }

func (r Answer) body(b []byte) []byte {
	b = be.AppendUint32(be.AppendUint64(b, r.ID), r.Sent)
	return be.AppendUint16(be.AppendUint32(b, micros(r.Held)), r.Size)
}

func (r Report) body(b []byte) []byte {
	b = append(b, r.Path)
	for _, v := range [...]uint64{r.Next, r.Lost, r.Bytes, uint64(r.Base.Microseconds()), uint64(r.Delay.Microseconds())} {
		b = be.AppendUint64(b, v)
	}
	for _, v := range [...]time.Duration{r.Jitter, r.Spread, r.Standing} {
		b = be.AppendUint32(b, micros(v))
	}
	return be.AppendUint64(b, r.Late)
}

func (r Scout) body(b []byte) []byte { return be.AppendUint64(b, r.ID) }

func (r Scouted) body(b []byte) []byte {
	b = append(be.AppendUint64(b, r.ID), r.Line)
	b = be.AppendUint64(be.AppendUint64(b, uint64(r.Up)), uint64(r.Down))
	return append(b, r.Name[:min(len(r.Name), maxName)]...)
}

func (r Rated) body(b []byte) []byte { return be.AppendUint64(b, uint64(r.Rate)) }

func (r Ack) body(b []byte) []byte { return be.AppendUint32(b, r.Number) }

func (r Progress) body(b []byte) []byte {
	for _, l := range r {
		b = be.AppendUint32(b, uint32(l.Lane)<<seqBits|uint32(l.Next)&seqMask)
	}
	return b
}

func (r Request) body(b []byte) []byte {
	b = append(b, r.Path, r.Attempt)
	if len(r.Counters) == 0 {
		return b
	}
	first := r.Counters[0]
	b = be.AppendUint64(b, first)
	for _, c := range r.Counters[1:] {
		b = be.AppendUint16(b, uint16(c-first))
	}
	return b
}

func (r Hello) body(b []byte) []byte {
	endpoints := byte(0)
	if r.Endpoints {
		endpoints = 1
	}
	return append(be.AppendUint32(b, r.Features), endpoints)
}

func (r PathAdd) body(b []byte) []byte {
	b = be.AppendUint64(be.AppendUint64(append(b, r.Path), uint64(r.Up)), uint64(r.Down))
	return append(appendCost(b, r.Cost, flag(strictBit, r.Strict)), r.Name[:min(len(r.Name), maxName)]...)
}

// maxName is the longest name of a path in bytes.
const maxName = 64

// ValidName reports whether a path may have a name: a word of letters, digits and ".", "_" and "-",
// which begins and ends with a letter or digit. It is shown on terminals, in logs and as a label of
// metrics.
func ValidName(name string) bool {
	if len(name) == 0 || len(name) > maxName || !alphanumeric(name[0]) || !alphanumeric(name[len(name)-1]) {
		return false
	}
	for i := range len(name) {
		if c := name[i]; !alphanumeric(c) && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

func alphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func (r PathRemove) body(b []byte) []byte { return append(b, r.Path) }

func (r NAT) body(b []byte) []byte { return appendAddress(append(b, r.Path), r.Seen) }

func (r Register) body(b []byte) []byte {
	b = appendAddress(appendAddress(append(b, r.Path), r.CareOf), r.HomeAgent)
	return appendProfile(b, r.Lifetime, r.Up, r.Down, r.Cost, flag(strictBit, r.Strict)|flag(openBit, r.Open))
}

func (r Registered) body(b []byte) []byte {
	b = appendAddress(append(b, r.Path, byte(r.Code)), r.CareOf)
	return appendProfile(b, r.Lifetime, r.Up, r.Down, r.Cost, flag(openBit, r.Open))
}

// appendProfile appends what paper D calls the profile of a terminal, with the time that it holds
// for.
func appendProfile(b []byte, lifetime time.Duration, up, down unit.Bandwidth, cost int32, flags uint32) []byte {
	b = be.AppendUint32(b, uint32(min(max(lifetime/time.Second, 0), math.MaxUint32)))
	return appendCost(be.AppendUint64(be.AppendUint64(b, uint64(up)), uint64(down)), cost, flags)
}

// The two highest bits of a cost are flags: strictBit if the rates before it are never to be
// exceeded, openBit for open messages over a member.
const strictBit, openBit = 1 << 31, 1 << 30

func flag(bit uint32, on bool) uint32 {
	if on {
		return bit
	}
	return 0
}

func appendCost(b []byte, cost int32, flags uint32) []byte {
	return be.AppendUint32(b, uint32(cost)&^(strictBit|openBit)|flags)
}

func (Bye) body(b []byte) []byte { return b }

func (r Arrived) body(b []byte) []byte {
	return be.AppendUint64(be.AppendUint64(append(b, r.Path), r.Packets), r.Lost)
}

func (r Sent) body(b []byte) []byte { return be.AppendUint64(b, r.Packets) }

func (r Open) body(b []byte) []byte { return be.AppendUint64(b, r.Cookie) }

func (r NATSession) body(b []byte) []byte { return r.appendFlows(append(b, byte(r.Command))) }

// The flags of a PathUse.
const useBackup, useFull, useSpent = 1, 2, 4

func (r PathUse) body(b []byte) []byte {
	flags := flag(useBackup, r.Backup) | flag(useFull, r.Full) | flag(useSpent, r.Spent)
	return be.AppendUint32(append(b, r.Path, byte(flags)), uint32(min(max(r.Interval, 0), MaxInterval)/time.Millisecond))
}

func (Unknown) body(b []byte) []byte { return b }

// micros returns a time in microseconds, bounded to 71 minutes.
func micros(d time.Duration) uint32 {
	return uint32(min(max(d/time.Microsecond, 0), math.MaxUint32))
}

func appendAddress(b []byte, a netip.AddrPort) []byte {
	ip := a.Addr().As16()
	return be.AppendUint16(append(b, ip[:]...), a.Port())
}

const (
	recordHead = 3
	numberLen  = 4
)

// AppendRecord appends a record that is not reliable.
func AppendRecord(b []byte, r Record) []byte {
	if r.Type().Reliable() {
		panic("BUG: reliable record without a number")
	}
	return appendRecord(b, r, nil)
}

// AppendNumbered appends a reliable record with its number.
func AppendNumbered(b []byte, number uint32, r Record) []byte {
	if !r.Type().Reliable() {
		panic("BUG: number of a record that is not reliable")
	}
	return appendRecord(b, r, be.AppendUint32(nil, number))
}

func appendRecord(b []byte, r Record, number []byte) []byte {
	at := len(b)
	b = append(append(b, byte(r.Type()), 0, 0), number...)
	b = r.body(b)
	be.PutUint16(b[at+1:], uint16(len(b)-at-recordHead))
	return b
}

var errRecord = errors.New("malformed control record")

// NextRecord parses the first record of a control message. number is that of a reliable one. rest
// is what follows it; the record is nil if there is none.
func NextRecord(b []byte) (r Record, number uint32, rest []byte, err error) {
	for len(b) > 0 && RecordType(b[0]) == recordPadding {
		b = b[1:]
	}
	if len(b) == 0 {
		return nil, 0, nil, nil
	}
	if len(b) < recordHead {
		return nil, 0, nil, errRecord
	}
	kind, length := RecordType(b[0]), int(be.Uint16(b[1:]))
	if b = b[recordHead:]; length > len(b) {
		return nil, 0, nil, fmt.Errorf("%w: %v is cut off", errRecord, kind)
	}
	body := fields{b: b[:length]}
	if kind.Reliable() {
		number = body.uint32()
	}
	r = body.record(kind)
	// A later version may append more.
	if body.short {
		return nil, 0, nil, fmt.Errorf("%w: %v of %d bytes", errRecord, kind, length)
	}
	return r, number, b[length:], nil
}

// fields reads the fields of a record; short is set when there are too few bytes or a value is out
// of range.
type fields struct {
	b     []byte
	short bool
}

func (f *fields) take(n int) []byte {
	if len(f.b) < n {
		f.short = true
		return make([]byte, n)
	}
	part := f.b[:n]
	f.b = f.b[n:]
	return part
}

func (f *fields) uint8() uint8   { return f.take(1)[0] }
func (f *fields) uint16() uint16 { return be.Uint16(f.take(2)) }
func (f *fields) uint32() uint32 { return be.Uint32(f.take(4)) }
func (f *fields) uint64() uint64 { return be.Uint64(f.take(8)) }

func (f *fields) path() uint8 {
	p := f.uint8()
	f.short = f.short || p >= MaxPaths
	return p
}

// rate reads a rate.
func (f *fields) rate() unit.Bandwidth {
	r := unit.Bandwidth(f.uint64())
	f.short = f.short || r < 0 || r > MaxRate && r != UnknownRate
	return r
}

// name reads the name of a path, or none.
func (f *fields) name() string {
	name := string(f.b)
	f.short = f.short || name != "" && !ValidName(name)
	return name
}

// cost reads a cost and its flags.
func (f *fields) cost() (cost int32, strict, open bool) {
	v := f.uint32()
	return int32(v &^ (strictBit | openBit)), v&strictBit != 0, v&openBit != 0
}

// seconds reads a time in seconds.
func (f *fields) seconds() time.Duration { return time.Duration(f.uint32()) * time.Second }

// micros reads a time in microseconds.
func (f *fields) micros() time.Duration { return time.Duration(f.uint32()) * time.Microsecond }

// longMicros reads a time that may be negative. Differences of the 32 bits of Stamp.Sent and
// Stamp.Wait are shorter than the bound.
func (f *fields) longMicros() time.Duration {
	v := int64(f.uint64())
	const maxValue = int64(1) << 33
	f.short = f.short || v > maxValue || v < -maxValue
	return time.Duration(v) * time.Microsecond
}

func (f *fields) address() netip.AddrPort {
	ip := netip.AddrFrom16([16]byte(f.take(16))).Unmap()
	return netip.AddrPortFrom(ip, f.uint16())
}

func (f *fields) record(kind RecordType) Record {
	switch kind {
	case recordProbe:
		return Probe{f.uint64()}
	case recordAnswer:
		return Answer{f.uint64(), f.uint32(), f.micros(), f.uint16()}
	case recordReport:
		return Report{
			Path: f.path(), Next: f.uint64(), Lost: f.uint64(), Bytes: f.uint64(), Base: f.longMicros(), Delay: f.longMicros(),
			Jitter: f.micros(), Spread: f.micros(), Standing: f.micros(), Late: f.uint64(),
		}
	case recordAck:
		return Ack{f.uint32()}
	case recordProgress:
		all := make(Progress, 0, len(f.b)/4)
		for len(f.b) > 0 && !f.short {
			v := f.uint32()
			all = append(all, Lane{uint8(v >> seqBits), Seq(v & seqMask)})
		}
		return all
	case recordRequest:
		r := Request{Path: f.path(), Attempt: f.uint8()}
		first := f.uint64()
		r.Counters = append(make([]uint64, 0, 1+len(f.b)/2), first)
		for len(f.b) > 0 && !f.short {
			r.Counters = append(r.Counters, first+uint64(f.uint16()))
		}
		return r
	case recordHello:
		return Hello{f.uint32(), f.uint8() != 0}
	case recordPathAdd:
		p := PathAdd{Path: f.path(), Up: f.rate(), Down: f.rate()}
		p.Cost, p.Strict, _ = f.cost()
		p.Name = f.name()
		return p
	case recordPathRemove:
		return PathRemove{f.path()}
	case recordNAT:
		return NAT{f.path(), f.address()}
	case recordRegister:
		r := Register{Path: f.path(), CareOf: f.address(), HomeAgent: f.address(), Lifetime: f.seconds(), Up: f.rate(), Down: f.rate()}
		r.Cost, r.Strict, r.Open = f.cost()
		return r
	case recordRegistered:
		r := Registered{Path: f.path(), Code: Code(f.uint8()), CareOf: f.address(), Lifetime: f.seconds(), Up: f.rate(), Down: f.rate()}
		r.Cost, _, r.Open = f.cost()
		return r
	case recordBye:
		return Bye{}
	case recordArrived:
		return Arrived{f.path(), f.uint64(), f.uint64()}
	case recordSent:
		return Sent{f.uint64()}
	case recordOpen:
		return Open{f.uint64()}
	case recordNATSession:
		return f.natSession()
	case recordPathUse:
		return f.pathUse()
	case recordScout:
		return Scout{f.uint64()}
	case recordScouted:
		return Scouted{f.uint64(), f.path(), f.rate(), f.rate(), f.name()}
	case recordRated:
		return Rated{f.rate()}
	case recordPadding:
	}
	return Unknown{kind}
}

func (f *fields) pathUse() PathUse {
	r := PathUse{Path: f.path()}
	flags := f.uint8()
	r.Backup, r.Full, r.Spent = flags&useBackup != 0, flags&useFull != 0, flags&useSpent != 0
	r.Interval = time.Duration(f.uint32()) * time.Millisecond
	f.short = f.short || r.Interval != 0 && (r.Interval < MinInterval || r.Interval > MaxInterval)
	return r
}

// Outbox keeps the reliable records of a session until they are acknowledged. The zero value is
// empty. It is not safe for concurrent use.
type Outbox struct {
	first uint32 // number of the first record that is kept
	kept  []Record
	sent  time.Duration
	wait  time.Duration // until the records are repeated, 0: they have not been sent
}

// maxOutbox bounds the records that wait: more are not sent by a gateway that works.
const maxOutbox = 256

// Put adds a record. It reports false when there is no room.
func (o *Outbox) Put(r Record) bool {
	if len(o.kept) == maxOutbox {
		return false
	}
	o.kept = append(o.kept, r)
	o.wait = 0
	return true
}

// AppendHello appends the Hello, the first record of the session, until it is acknowledged. It goes
// without regard to when the others are due.
func (o *Outbox) AppendHello(b []byte) []byte {
	if o.first > 0 || len(o.kept) == 0 || o.kept[0].Type() != recordHello {
		return b
	}
	return AppendNumbered(b, 0, o.kept[0])
}

// Greeted reports whether the Hello, the first record, is acknowledged.
func (o *Outbox) Greeted() bool { return o.first > 0 }

// Acked removes the records up to a number.
func (o *Outbox) Acked(number uint32) {
	if n := int(int32(number - o.first)); n >= 0 && n < len(o.kept) {
		o.kept = o.kept[n+1:]
		o.first = number + 1
		o.wait = 0
	}
}

// Due returns when records are to be sent, and false if there are none.
func (o *Outbox) Due() (time.Duration, bool) { return o.sent + o.wait, len(o.kept) > 0 }

// Append appends the records that fit into a message of most bytes, if they are due: rto after they
// were sent, then after twice that, at most 5 s.
func (o *Outbox) Append(b []byte, most int, now, rto time.Duration) []byte {
	if at, any := o.Due(); !any || o.wait > 0 && now < at {
		return b
	}
	for i, r := range o.kept {
		n := len(b)
		if b = AppendNumbered(b, o.first+uint32(i), r); len(b) > most {
			b = b[:n]
			break
		}
	}
	o.sent, o.wait = now, min(max(2*o.wait, rto), maxRepeat)
	return b
}

const maxRepeat = 5 * time.Second

// Inbox puts the reliable records of a session in order: each is processed once. The zero value has
// received none.
type Inbox struct {
	next uint32
}

// Take reports whether the record with this number is to be processed now. Later ones are repeated
// by the sender.
func (i *Inbox) Take(number uint32) bool {
	if number != i.next {
		return false
	}
	i.next++
	return true
}

// Ack returns what has been received, and false before the first record.
func (i *Inbox) Ack() (Ack, bool) { return Ack{i.next - 1}, i.next > 0 }
