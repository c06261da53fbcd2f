package traffic

import "testing"

func TestPayloadShare(t *testing.T) {
	for _, tt := range []struct {
		mtu                int
		overhead           Overhead
		payload, onTheWire float64
		of60               float64
	}{
		{1500, Overhead{}, 1428, 1514, 56.59},
		{1500, Overhead{MPTCP: true}, 1400, 1514, 55.48},
		{1500, Overhead{MPTCP: true, Encap: 40}, 1360, 1474, 55.36},
		{1500, Overhead{MPTCP: true, Encap: 64}, 1336, 1450, 55.28},
		{1500, Overhead{Encap: 64}, 1364, 1450, 56.44},
		{1500, Overhead{IPv4: true}, 1448, 1514, 57.39},
		{1500, Overhead{MPTCP: true, IPv4: true, Encap: 40}, 1380, 1474, 56.17},
		{9000, Overhead{}, 8928, 9014, 59.43},
	} {
		got, err := PayloadShare(tt.mtu, tt.overhead)
		if err != nil || got != tt.payload/tt.onTheWire {
			t.Errorf("PayloadShare(%d, %+v) = %g, %v, want %g/%g", tt.mtu, tt.overhead, got, err, tt.payload, tt.onTheWire)
		}
		if d := 60*got - tt.of60; d < -0.01 || d > 0.01 {
			t.Errorf("PayloadShare(%d, %+v) of 60 Mbit/s is %g, want %g", tt.mtu, tt.overhead, 60*got, tt.of60)
		}
	}
	for _, tt := range []struct {
		mtu, encap int
	}{{0, 0}, {-1, 0}, {1279, 0}, {1300, 40}, {1500, -40}, {70000, 0}} {
		if got, err := PayloadShare(tt.mtu, Overhead{Encap: tt.encap}); err == nil {
			t.Errorf("PayloadShare(%d, encap %d) = %g, want an error", tt.mtu, tt.encap, got)
		}
	}
}
