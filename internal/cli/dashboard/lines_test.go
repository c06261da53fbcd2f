package dashboard

import (
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestLines: rates are those between two reports, bytes those of the last day, a daemon that starts
// again begins its counters again, and a path that is not reported is not shown.
func TestLines(t *testing.T) {
	l := lines{}
	start := time.Unix(1_700_000_000, 0)
	report := func(second int, sent uint64, paths ...string) {
		var all []gatewayPath
		for _, name := range paths {
			all = append(all, gatewayPath{Peer: "hq", Path: name, Up: true, SentBytes: sent})
		}
		at := start.Add(time.Duration(second) * time.Second)
		l.add("gateway", all, at, at)
	}
	report(0, 1000, "lte", "fiber")
	report(2, 3000, "lte", "fiber")
	report(3, 500, "lte", "fiber") // started again
	got := l.list()
	if len(got) != 2 || got[0].Path != "fiber" || got[0].SentBytes != 2500 || len(got[0].Out) != 2 || got[0].Out[0] != 8000 || got[0].Out[1] != 4000 {
		t.Errorf("got %+v", got)
	}
	report(4, 500, "fiber")
	if got := l.list(); len(got) != 1 {
		t.Errorf("a path that is not reported is shown: %+v", got)
	}
	report(25*3600, 600, "fiber")
	if got := l.list(); got[0].SentBytes != 100 {
		t.Errorf("the last day has %d bytes, want 100", got[0].SentBytes)
	}
}

// TestLinesOfADeadGateway: what does not answer is not shown as up, and carries nothing.
func TestLinesOfADeadGateway(t *testing.T) {
	l := lines{}
	now := time.Unix(1_700_000_000, 0)
	for i := range 3 {
		at := now.Add(time.Duration(i) * time.Second)
		l.add("gateway", []gatewayPath{{Path: "a", Up: true, State: "up", SentBytes: uint64(i) * 1000}}, at, at)
	}
	l.silent("gateway")
	l.silent("another")
	if got := l.list()[0]; got.Up || got.State == "up" || got.Out[len(got.Out)-1] != 0 || got.SentBytes != 2000 {
		t.Errorf("a gateway that does not answer has %+v", got)
	}
}

// TestRateOfALine: however long answers and the pauses between them take, and whenever a gateway
// reads its counters meanwhile, no rate is more than that of the line, and it is that rate where
// answers take no time. A gateway that did not answer for a while does not seem faster afterwards.
func TestRateOfALine(t *testing.T) {
	const bytesPerSecond = 2_500_000
	rapid.Check(t, func(t *rapid.T) {
		l := lines{}
		start := time.Unix(1_700_000_000, 0)
		now := start
		pass := func(what string, least time.Duration) time.Duration {
			took := time.Duration(rapid.Int64Range(int64(least), int64(2*time.Second)).Draw(t, what))
			now = now.Add(took)
			return took
		}
		atOnce := rapid.Bool().Draw(t, "at once")
		for range rapid.IntRange(2, 20).Draw(t, "reports") {
			pass("pause", time.Millisecond)
			if rapid.IntRange(0, 4).Draw(t, "answers") == 0 {
				l.silent("gateway")
				continue
			}
			asked := now
			if !atOnce {
				pass("until it reads", 0)
			}
			carried := uint64(now.Sub(start).Seconds() * bytesPerSecond)
			if !atOnce {
				pass("until it arrives", 0)
			}
			l.add("gateway", []gatewayPath{{Path: "a", SentBytes: carried}}, asked, now)
		}
		for _, one := range l.list() {
			for _, rate := range one.Out {
				if most := bytesPerSecond * 8 * 1.001; rate > most || atOnce && rate > 0 && rate < bytesPerSecond*8*0.999 {
					t.Fatalf("%.0f bit/s of a line that carries %d", rate, bytesPerSecond*8)
				}
			}
		}
	})
}

// TestManyLines: of a gateway with many paths a bounded number is kept.
func TestManyLines(t *testing.T) {
	l := lines{}
	paths := make([]gatewayPath, 16_000)
	for i := range paths {
		paths[i] = gatewayPath{Path: strconv.Itoa(i)}
	}
	l.add("gateway", paths, time.Unix(1_700_000_000, 0), time.Unix(1_700_000_000, 0))
	if len(l) != maxLines {
		t.Errorf("%d lines are kept", len(l))
	}
}

// TestLinesAreBounded: whenever a gateway answers, the history stays within a day.
func TestLinesAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := lines{}
		now := time.Unix(1_700_000_000, 0)
		var sent, sum uint64
		for range rapid.IntRange(1, 50).Draw(t, "reports") {
			now = now.Add(time.Duration(rapid.IntRange(-5, 90_000).Draw(t, "seconds")) * time.Second)
			bytes := rapid.Uint64Range(0, 1<<40).Draw(t, "bytes")
			sent, sum = sent+bytes, sum+bytes
			l.add("gateway", []gatewayPath{{Path: "a", SentBytes: sent}}, now, now)
			h := l[lineKey{"gateway", "", "a"}]
			if len(h.minutes) > day || len(h.minutes) == 0 || len(h.rate.out) > samples {
				t.Fatalf("%d minutes, %d samples", len(h.minutes), len(h.rate.out))
			}
			if got := l.list()[0].SentBytes; got > sum {
				t.Fatalf("%d bytes of %d", got, sum)
			}
		}
	})
}
