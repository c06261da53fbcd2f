package acks

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

// segment is an IP packet of a TCP segment with these options, which are padded.
func segment(six bool, number uint32, options ...[]byte) []byte {
	o := slices.Concat(options...)
	for len(o)%4 != 0 {
		o = append(o, kindNop)
	}
	b := make([]byte, ipv4Len, 100)
	if six {
		b = b[:ipv6Len]
		b[0], b[6], b[5] = 0x60, protocolTCP, byte(tcpLen+len(o))
	} else {
		b[0], b[9], b[3] = 0x45, protocolTCP, byte(ipv4Len+tcpLen+len(o))
	}
	t := make([]byte, tcpLen)
	t[1], t[3], t[12], t[13] = 80, 99, byte(tcpLen+len(o))<<2, 1<<4
	binary.BigEndian.PutUint32(t[8:], number)
	return slices.Concat(b, t, o)
}

func timestamps(value, echo uint32) []byte {
	b := []byte{kindTimestamps, timestampsLen}
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, value), echo)
}

func sack(edges ...uint32) []byte {
	b := []byte{kindSACK, byte(2 + 4*len(edges))}
	for _, e := range edges {
		b = binary.BigEndian.AppendUint32(b, e)
	}
	return b
}

// with returns a packet with another byte.
func with(b []byte, at int, value byte) []byte {
	b = bytes.Clone(b)
	b[at] = value
	return b
}

func TestSupersedes(t *testing.T) {
	plain, later := segment(false, 1000), segment(false, 2000)
	const flags, offset = ipv4Len + 13, ipv4Len + 12
	for _, tt := range []struct {
		name        string
		packet, old []byte
		want        bool
	}{
		{"more is acknowledged", later, plain, true},
		{"over IPv6", segment(true, 2000), segment(true, 1000), true},
		{"across the wrap", segment(false, 5), segment(false, 1<<32-5), true},
		{"less", plain, later, false},
		{"a duplicate, or a window update", plain, with(plain, ipv4Len+15, 9), false},
		{"another window beside", with(later, ipv4Len+15, 9), plain, true},
		{"another port", later, with(plain, ipv4Len+1, 81), false},
		{"another address", later, with(plain, 19, 1), false},
		{"another IP version", segment(true, 2000), plain, false},
		{"a congestion mark", later, with(plain, 1, 3), false},
		{"another sequence number", later, with(plain, ipv4Len+7, 1), false},
		{"a fragment", later, with(plain, 6, 0x20), false},
		{"IP options", later, with(plain, 0, 0x46), false},
		{"data", append(with(later, 3, 41), 0), plain, false},
		{"data before", later, append(with(plain, 3, 41), 0), false},
		{"more than the IP packet", later, append(bytes.Clone(plain), 0), false},
		{"UDP", later, with(plain, 9, 17), false},
		{"FIN", later, with(plain, flags, 1<<4|1), false},
		{"SYN", later, with(plain, flags, 1<<4|2), false},
		{"RST", with(later, flags, 1<<4|4), plain, false},
		{"PSH", later, with(plain, flags, 1<<4|8), false},
		{"URG", later, with(plain, flags, 1<<4|1<<5), false},
		{"ECE", later, with(plain, flags, 1<<4|1<<6), false},
		{"ECE later", with(later, flags, 1<<4|1<<6), plain, false},
		{"CWR", later, with(plain, flags, 1<<4|1<<7), false},
		{"a reserved flag", later, with(plain, offset, 5<<4|1), false},
		{"no ACK", later, with(plain, flags, 0), false},
		{"timestamps", segment(false, 2000, timestamps(7, 4)), segment(false, 1000, timestamps(6, 4)), true},
		{"the same timestamps", segment(false, 2000, timestamps(6, 4)), segment(false, 1000, timestamps(6, 4)), true},
		{"an older timestamp", segment(false, 2000, timestamps(5, 4)), segment(false, 1000, timestamps(6, 4)), false},
		{"an older echo", segment(false, 2000, timestamps(6, 3)), segment(false, 1000, timestamps(6, 4)), false},
		{"no timestamps any more", later, segment(false, 1000, timestamps(6, 4)), false},
		{"timestamps twice", segment(false, 2000, timestamps(6, 4)), segment(false, 1000, timestamps(6, 4), timestamps(6, 4)), false},
		{"a hole is filled", segment(false, 4000), segment(false, 1000, sack(2000, 3000)), true},
		{"a hole is filled in part", segment(false, 2000, sack(3000, 4000)), segment(false, 1000, sack(3000, 4000)), true},
		{"a block grows", segment(false, 1000, sack(2000, 4000)), segment(false, 1000, sack(2000, 3000)), true},
		{"a block more", segment(false, 1000, sack(6000, 7000, 2000, 3000)), segment(false, 1000, sack(2000, 3000)), true},
		{"the first block", segment(false, 1000, sack(2000, 3000)), plain, true},
		{"the same blocks", segment(false, 1000, sack(2000, 3000)), segment(false, 1000, sack(2000, 3000)), false},
		{"a block less", segment(false, 1500), segment(false, 1000, sack(2000, 3000)), false},
		{"another block", segment(false, 1500, sack(4000, 9000)), segment(false, 1000, sack(2000, 3000)), false},
		{"DSACK below the number", segment(false, 4000), segment(false, 1000, sack(500, 600)), false},
		{"DSACK in a block", segment(false, 4000), segment(false, 1000, sack(2000, 2500, 2000, 3000)), false},
		{"DSACK later", segment(false, 4000, sack(500, 600)), plain, true},
		{"half a block", later, segment(false, 1000, []byte{kindSACK, 6, 0, 0, 0, 0}), false},
		{"MPTCP", later, segment(false, 1000, []byte{30, 8, 0x20, 1, 0, 0, 0, 0}), false},
		{"MPTCP later", segment(false, 2000, []byte{30, 8, 0x20, 1, 0, 0, 0, 0}), plain, false},
		{"an option of no length", later, segment(false, 1000, []byte{kindSACK, 0}), false},
		{"an option that is too long", later, segment(false, 1000, []byte{kindSACK, 10, 0, 0}), false},
		{"an option without length", later, with(segment(false, 1000, []byte{kindNop, kindNop, kindNop, kindNop}), ipv4Len+tcpLen+3, kindSACK), false},
		{"the end of options", segment(false, 2000, []byte{kindEnd, 30, 8, 0}), plain, true},
		{"nothing", later, nil, false},
	} {
		if got := Supersedes(tt.packet, tt.old); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// FuzzSupersedes: whatever hosts send, nothing is read outside of the packets, no packet supersedes
// itself, and no two supersede each other.
func FuzzSupersedes(f *testing.F) {
	f.Add(segment(false, 2000, timestamps(2, 2), sack(3000, 4000)), segment(false, 1000, timestamps(1, 1), sack(3000, 3500)))
	f.Add(segment(true, 2000, sack(3000, 4000, 5000, 6000)), segment(true, 1000))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		a, b = slices.Clip(a), slices.Clip(b)
		if Supersedes(a, a) {
			t.Errorf("%x supersedes itself", a)
		}
		if Supersedes(a, b) && Supersedes(b, a) && binary.BigEndian.Uint32(header(a)[8:])-binary.BigEndian.Uint32(header(b)[8:]) != 1<<31 {
			t.Errorf("%x and %x supersede each other", a, b)
		}
	})
}

// TestNoAllocation: it is called for packets that are forwarded.
func TestNoAllocation(t *testing.T) {
	a, b := segment(false, 2000, timestamps(2, 2), sack(3000, 4000)), segment(false, 1000, timestamps(1, 1))
	if n := testing.AllocsPerRun(100, func() { Supersedes(a, b) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
