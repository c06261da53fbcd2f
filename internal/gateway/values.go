package gateway

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/quota"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// Rate is the rate of a path in one direction: a bandwidth, or one of the other values. 0 is not
// given, as the empty text is.
type Rate int64

const (
	// RateAuto is measured.
	RateAuto Rate = -1 - iota
	// RateNone carries nothing.
	RateNone
)

// rateNames are the texts of rates that are no bandwidth.
var rateNames = map[Rate]string{RateAuto: "auto", RateNone: "none"}

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Rate) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*r = 0
		return nil
	}
	for rate, name := range rateNames {
		if string(text) == name {
			*r = rate
			return nil
		}
	}
	b, err := unit.ParseBandwidth(string(text))
	if err != nil {
		return fmt.Errorf(`want a bandwidth like "50Mbit/s", auto or none, got %q`, text)
	}
	if b == 0 {
		return fmt.Errorf("must be > 0, got %s; write none for a direction that carries nothing, auto for one that is to be measured", text)
	}
	if b > tunnel.MaxRate {
		return fmt.Errorf("must be at most %v, got %s", tunnel.MaxRate, text)
	}
	*r = Rate(b)
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (r Rate) MarshalText() ([]byte, error) {
	if name, ok := rateNames[r]; ok {
		return []byte(name), nil
	}
	if r == 0 {
		return nil, nil
	}
	return unit.Bandwidth(r).MarshalText()
}

func (r Rate) plane() dataplane.Rate {
	switch r {
	case RateAuto:
		return dataplane.Rate{Estimated: true}
	case RateNone:
		return dataplane.Rate{}
	}
	return dataplane.Rate{Bandwidth: unit.Bandwidth(r)}
}

// ParseShort implements field.Short.
func (r *Rates) ParseShort(text string) error {
	var both Rate
	if err := both.UnmarshalText([]byte(text)); err != nil {
		return err
	}
	*r = Rates{both, both}
	return nil
}

// Short implements field.Short.
func (r *Rates) Short() (string, bool) {
	text, err := r.Down.MarshalText()
	return string(text), err == nil && r.Down == r.Up
}

// Backup is when a line is used that others are preferred to. The zero value is always.
type Backup uint8

const (
	// NoBackup is used as others are.
	NoBackup Backup = iota
	// BackupDown is used while no other one carries packets.
	BackupDown
	// BackupFull is used while the others cannot take all, too.
	BackupFull
)

// backupNames are the texts of Backup.
var backupNames = [...]string{NoBackup: "false", BackupDown: "true", BackupFull: "full"}

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *Backup) UnmarshalText(text []byte) error {
	i := slices.Index(backupNames[:], string(text))
	if i < 0 && len(text) > 0 {
		return fmt.Errorf("want true, false or full, got %q", text)
	}
	*b = Backup(max(i, 0))
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (b Backup) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

func (b Backup) String() string { return backupNames[b] }

// What happens when a quota is used up.
const thenStop, thenBackup = "stop", "backup"

// perMonth ends the short form of a quota.
const perMonth = "/month"

// ParseShort implements field.Short.
func (q *Quota) ParseShort(text string) error {
	volume, month := strings.CutSuffix(text, perMonth)
	size, err := unit.ParseSize(volume)
	if err != nil || !month {
		return fmt.Errorf(`want a volume in a month like "20GB%s", got %q`, perMonth, text)
	}
	*q = Quota{Volume: size}
	return nil
}

// Short implements field.Short.
func (q *Quota) Short() (string, bool) {
	return q.Volume.String() + perMonth, q.Day == 0 && q.Then == ""
}

// plan returns the quota as it is counted.
func (q *Quota) plan() quota.Plan { return quota.Plan{Volume: q.Volume, Day: max(q.Day, 1)} }

// Protocol selects an IP protocol. The zero value selects all.
type Protocol struct {
	number uint8
	name   string
}

// The numbers of IP protocols.
const (
	protocolICMP, protocolTCP, protocolUDP, protocolDCCP = 1, 6, 17, 33
	protocolGRE, protocolESP, protocolICMPv6             = 47, 50, 58
	protocolSCTP, protocolUDPLite                        = 132, 136
)

// protocols are the names of protocols, in the order of messages.
var protocols = []Protocol{
	{protocolTCP, "tcp"}, {protocolUDP, "udp"}, {protocolICMP, "icmp"}, {protocolSCTP, "sctp"},
	{protocolDCCP, "dccp"}, {protocolGRE, "gre"}, {protocolESP, "esp"},
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Protocol) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*p = Protocol{}
		return nil
	}
	name := string(text)
	names := make([]string, len(protocols))
	for i, known := range protocols {
		if names[i] = known.name; known.name == name {
			*p = known
			return nil
		}
	}
	n, err := strconv.ParseUint(name, 10, 8)
	if err != nil || n == 0 {
		return fmt.Errorf("want one of %s or a number from 1 to 255, got %q%s", strings.Join(names, ", "), name, fault.Suggest(name, names))
	}
	*p = Protocol{uint8(n), strconv.FormatUint(n, 10)}
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.name), nil }

// hasPorts reports whether packets of the protocol have ports; those of all protocols may.
func (p Protocol) hasPorts() bool {
	return slices.Contains([]uint8{0, protocolTCP, protocolUDP, protocolDCCP, protocolSCTP, protocolUDPLite}, p.number)
}

// numbers are the protocols that are selected; nil is all.
func (p Protocol) numbers() []uint8 {
	switch {
	case p.number == 0:
		return nil
	case p.name == "icmp":
		return []uint8{protocolICMP, protocolICMPv6}
	}
	return []uint8{p.number}
}

// DSCP is a differentiated services code point (RFC 2474). The zero value selects all packets.
type DSCP struct {
	given bool
	value uint8
	name  string
}

// codePoint returns the value of the name of a code point (RFC 2597, 3246, 4594, 5865, 8622).
func codePoint(name string) (uint8, bool) {
	digit := func(at int, most byte) (uint8, bool) {
		if len(name) <= at || name[at] < '0' || name[at] > most {
			return 0, false
		}
		return name[at] - '0', true
	}
	switch {
	case name == "ef":
		return 46, true
	case name == "va":
		return 44, true
	case name == "le":
		return 1, true
	case strings.HasPrefix(name, "cs") && len(name) == 3:
		class, ok := digit(2, '7')
		return class << 3, ok
	case strings.HasPrefix(name, "af") && len(name) == 4:
		class, ok := digit(2, '4')
		drop, ok2 := digit(3, '3')
		return class<<3 | drop<<1, ok && ok2 && class > 0 && drop > 0
	}
	return 0, false
}

// maxDSCP is the largest code point.
const maxDSCP = 63

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *DSCP) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*d = DSCP{}
		return nil
	}
	name := string(text)
	if value, ok := codePoint(name); ok {
		*d = DSCP{true, value, name}
		return nil
	}
	n, err := strconv.ParseUint(name, 10, 8)
	if err != nil || n > maxDSCP {
		return fmt.Errorf("want ef, va, le, cs0 to cs7, af11 to af43 or a number from 0 to %d, got %q", maxDSCP, name)
	}
	*d = DSCP{true, uint8(n), strconv.FormatUint(n, 10)}
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (d DSCP) MarshalText() ([]byte, error) { return []byte(d.name), nil }

// Mark selects packets by their mark in the kernel. The zero value selects all.
type Mark struct {
	value, mask uint32
	name        string
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Mark) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*m = Mark{}
		return nil
	}
	value, mask, masked := strings.Cut(string(text), "/")
	v, err := strconv.ParseUint(value, 0, 32)
	bits := uint64(math.MaxUint32)
	if err == nil && masked {
		bits, err = strconv.ParseUint(mask, 0, 32)
	}
	if err != nil {
		return fmt.Errorf(`want a number of 32 bits, or such a number and a mask like "0x10/0xff", got %q`, text)
	}
	if bits == 0 || v&^bits != 0 {
		return fmt.Errorf("the mask must not be 0, and must have all bits of the mark, got %q", text)
	}
	*m = Mark{uint32(v), uint32(bits), string(text)}
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (m Mark) MarshalText() ([]byte, error) { return []byte(m.name), nil }

// Resequence is how packets are put into order. The zero value is auto.
type Resequence struct {
	Off bool
	// Bound is the longest time that a packet is held, 0 without a fixed one.
	Bound time.Duration
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Resequence) UnmarshalText(text []byte) error {
	switch string(text) {
	case "auto":
		*r = Resequence{}
		return nil
	case "off":
		*r = Resequence{Off: true}
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil || d <= 0 {
		return fmt.Errorf(`want auto, off, or a time > 0 like "20ms", got %q`, text)
	}
	*r = Resequence{Bound: d}
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (r Resequence) MarshalText() ([]byte, error) { return []byte(r.plane().String()), nil }

func (r Resequence) plane() dataplane.Resequence {
	switch {
	case r.Off:
		return dataplane.Resequence{Mode: dataplane.ResequenceOff}
	case r.Bound > 0:
		return dataplane.Resequence{Mode: dataplane.ResequenceFixed, Bound: r.Bound}
	}
	return dataplane.Resequence{Mode: dataplane.ResequenceAuto}
}
