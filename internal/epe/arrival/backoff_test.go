package arrival

import "testing"

// TestBackoff: a sender that gets no acknowledgments is recognized by its third probe, and no other.
func TestBackoff(t *testing.T) {
	ms := func(n ...uint32) []uint32 { return n }
	bulk := func(to uint32) (at []uint32) {
		for i := range to {
			at = append(at, i+1)
		}
		return at
	}
	for name, test := range map[string]struct {
		at   []uint32 // ms
		want bool
	}{
		"quic-go after a path failed":  {append(bulk(1000), ms(1087, 1087, 1261, 1261, 1605, 1605)...), true},
		"a pause before, one packet":   {append(bulk(1000), ms(1026, 1097, 1238, 1520)...), true},
		"two probes":                   {append(bulk(1000), ms(1087, 1087, 1261, 1261)...), false},
		"an acknowledgment in between": {append(bulk(1000), ms(1087, 1088, 1089, 1090, 1091, 1258, 1602)...), false},
		"steady":                       {ms(1, 101, 201, 301, 401, 501, 601), false},
		"each a second later":          {ms(1, 101, 1101, 2101, 3101, 4101, 5101), false},
		"bulk":                         {bulk(5000), false},
		"speech":                       {ms(1, 20, 40, 60, 80, 100, 120, 160, 180, 200, 400, 420, 460), false},
	} {
		var b backoff
		got := false
		for _, at := range test.at {
			got = b.sent(1000*at, 1200) >= backoffTimes || got
		}
		if got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
