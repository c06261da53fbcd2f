package dataplane

import (
	"net/netip"
	"testing"
)

func TestFirstRuleDecides(t *testing.T) {
	const tcp, udp, icmp, icmp6 = 6, 17, 1, 58
	policy := Policy{
		{Match: Match{HasDSCP: true, DSCP: 46}},
		{Match: Match{Protocols: []uint8{udp}, Port: 443}},
		{Match: Match{Protocols: []uint8{icmp, icmp6}}},
		{Match: Match{Prefix: netip.MustParsePrefix("10.9.0.0/16")}},
		{Match: Match{HasDSCP: true}},
	}
	a, b, far := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("10.9.1.1")
	for name, tt := range map[string]struct {
		packet Packet
		want   int
	}{
		"by DSCP before all others":         {Packet{Src: a, Dst: far, Protocol: udp, DSCP: 46, DstPort: 443}, 0},
		"by destination port":               {Packet{Src: a, Dst: b, Protocol: udp, SrcPort: 40000, DstPort: 443}, 1},
		"by source port, of an answer":      {Packet{Src: b, Dst: a, Protocol: udp, SrcPort: 443, DstPort: 40000}, 1},
		"not by the port of other protocol": {Packet{Src: a, Dst: b, Protocol: tcp, DstPort: 443}, 4},
		"one of the protocols":              {Packet{Src: a, Dst: b, Protocol: icmp6}, 2},
		"by the prefix of the destination":  {Packet{Src: a, Dst: far, Protocol: tcp}, 3},
		"by the prefix of the source":       {Packet{Src: far, Dst: a, Protocol: tcp}, 3},
		"DSCP 0 is not any":                 {Packet{Src: a, Dst: b, Protocol: tcp, DSCP: 10}, -1},
		"a later fragment has no port":      {Packet{Src: a, Dst: b, Protocol: udp}, 4},
	} {
		if got := policy.First(&tt.packet); got != tt.want {
			t.Errorf("%s: rule %d, want %d", name, got, tt.want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { policy.First(&Packet{Src: a, Dst: b, Protocol: tcp, DSCP: 10}) }); n > 0 {
		t.Errorf("%v allocations for a packet", n)
	}
}
