package tunnel

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

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
