package capture

import (
	"net/netip"
	"slices"
	"testing"
)

func TestOptions(t *testing.T) {
	signal := func(s signalOption) []byte { return s.bytes() }
	full := signalOption{hasAck: true, hasMap: true, ack: 1 << 40, dsn: 1 << 50, subflow: 7, length: 1400, fin: true}
	short := full
	short.short, short.ack, short.dsn, short.checksum, short.sum = true, 5, 6, true, 0xabcd
	tests := []struct {
		name  string
		bytes []byte
		seen  []int
		check func(o *options) bool
	}{
		{"none", nil, nil, nil},
		{"others", []byte{1, 2, 4, 5, 0xb4, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 0}, nil, nil},
		{"MP_CAPABLE of a SYN", capableOption(1), []int{subCapable}, func(o *options) bool { return o.capable == capable{version: 1} }},
		{"MP_CAPABLE with a key", capableOption(0, 5), []int{subCapable}, func(o *options) bool { return o.capable.sender == 5 && !o.capable.hasBoth }},
		{"MP_CAPABLE with both", capableOption(1, 5, 6), []int{subCapable}, func(o *options) bool { return o.capable.receiver == 6 && o.capable.hasBoth }},
		{"MP_JOIN", joinOption(0xabcdef01, true), []int{subJoin}, func(o *options) bool { return o.join == join{syn: true, backup: true, id: 7, token: 0xabcdef01} }},
		{"DSS, long", signal(full), []int{subDSS}, func(o *options) bool {
			return o.dss == dss{hasAck: true, ack8: true, ack: 1 << 40, hasMap: true, map8: true, dsn: 1 << 50, subflow: 7, length: 1400, fin: true}
		}},
		{"DSS, short, with a checksum", signal(short), []int{subDSS}, func(o *options) bool {
			return o.dss == dss{hasAck: true, ack: 5, hasMap: true, dsn: 6, subflow: 7, length: 1400, sum: 0xabcd, hasSum: true, fin: true}
		}},
		{"DSS of an acknowledgement behind others", append([]byte{1, 1}, signal(signalOption{hasAck: true, ack: 9})...), []int{subDSS}, func(o *options) bool { return o.dss.ack == 9 && !o.dss.hasMap }},
		{"two of a kind: the first counts", append(signal(signalOption{hasAck: true, ack: 9}), signal(signalOption{hasAck: true, ack: 10})...), []int{subDSS}, func(o *options) bool { return o.dss.ack == 9 }},
		{"ADD_ADDR of version 0 with a port", option(subAddAddr, 4, 3, 192, 0, 2, 1, 0x1f, 0x90), []int{subAddAddr}, func(o *options) bool {
			return o.addr == announced{id: 3, addr: netip.MustParseAddr("192.0.2.1"), port: 8080}
		}},
		{"echo of ADD_ADDR", option(subAddAddr, 1, 3, 192, 0, 2, 1), []int{subAddAddr}, func(o *options) bool { return o.addr.echo }},
		{"MP_PRIO of version 0", option(subPrio, 1, 4), []int{subPrio}, func(o *options) bool { return o.backup }},
	}
	for _, tt := range tests {
		var o options
		o.parse(tt.bytes)
		var want uint16
		for _, s := range tt.seen {
			want |= 1 << s
		}
		if o.seen != want || o.broken || tt.check != nil && !tt.check(&o) {
			t.Errorf("%s: got %+v", tt.name, o)
		}
		// Truncated anywhere, it is malformed or has fewer elements.
		for n := range tt.bytes {
			var c options
			c.parse(tt.bytes[:n])
			if c.seen&^o.seen != 0 || c.seen == o.seen && o.seen != 0 && !c.broken && !slices.Contains([]string{"two of a kind: the first counts"}, tt.name) {
				t.Errorf("%s cut to %d bytes: %+v", tt.name, n, c)
			}
		}
	}
	for _, b := range [][]byte{
		{optionMPTCP}, {optionMPTCP, 0}, {optionMPTCP, 1}, {optionMPTCP, 2}, {optionMPTCP, 40, 0x20}, {5, 0, 0}, option(subDSS, 0, 0x04, 1, 2, 3), option(subCapable, 1, 0, 1), option(9, 0, 1),
		option(subAddAddr, 0, 1, 2), option(subFail, 0, 1), option(subJoin, 0, 1), option(subRemoveAddr, 0), option(subReset, 0), option(subAddAddr, 7, 3, 1, 2, 3, 4),
	} {
		var o options
		if o.parse(b); o.seen != 0 || !o.broken {
			t.Errorf("% x: got %+v, want that it is broken", b, o)
		}
	}
}

func FuzzOptions(f *testing.F) {
	f.Add(signalOption{hasAck: true, hasMap: true}.bytes())
	f.Add(capableOption(1, 5, 6))
	f.Add(joinOption(1, false))
	f.Add(option(subAddAddr, 4, 3, 192, 0, 2, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		var o options
		o.parse(b)
		if o.has(subAddAddr) && !o.addr.addr.IsValid() {
			t.Fatalf("% x: an address that is none", b)
		}
	})
}
