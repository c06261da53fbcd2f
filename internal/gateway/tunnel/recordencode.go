package tunnel

import (
	"math"
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

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
