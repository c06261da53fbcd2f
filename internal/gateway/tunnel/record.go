package tunnel

import (
	"encoding/binary"
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
