package traffic

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
)

func TestScheduleDue(t *testing.T) {
	s := schedule{rate: 25 * unit.MbitPerSecond, duration: 30 * time.Second, chunk: 10 * time.Millisecond}
	for _, tt := range []struct {
		at   time.Duration
		want int64
	}{
		{0, 31250},
		{10*time.Millisecond - 1, 31250},
		{10 * time.Millisecond, 62500},
		{time.Second - 1, 3125000},
		{time.Second, 3156250},
		{29990 * time.Millisecond, 93750000},
		{30 * time.Second, 93750000},
		{time.Hour, 93750000},
	} {
		if got := s.due(tt.at); got != tt.want {
			t.Errorf("due(%s) = %d, want %d", tt.at, got, tt.want)
		}
	}
	if s.total() != 93750000 {
		t.Errorf("total = %d, want 93750000", s.total())
	}
}

func TestPropertyScheduleIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := schedule{
			rate:     unit.Bandwidth(rapid.Int64Range(1, int64(10*unit.GbitPerSecond)).Draw(t, "rate")),
			duration: time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "duration")),
			chunk:    time.Duration(rapid.Int64Range(int64(minChunk), int64(maxChunk)).Draw(t, "chunk")),
		}
		at := time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(t, "at"))
		due, next := s.due(at), s.next(at)
		if next <= at || next > at+s.chunk {
			t.Fatalf("%+v: the chunk after %s begins at %s", s, at, next)
		}
		if s.due(next-1) != due || s.due(next) < due {
			t.Fatalf("%+v: %d bytes are due at %s, %d before the next chunk, %d at it", s, due, at, s.due(next-1), s.due(next))
		}
		if due > s.total() || at >= s.duration && due != s.total() {
			t.Fatalf("%+v: %d bytes are due at %s, of %d", s, due, at, s.total())
		}
		// Never behind the ideal line, and at most one chunk ahead.
		if ideal := int64(s.rate.SizeIn(min(at, s.duration))); due < ideal || due > int64(s.rate.SizeIn(at+s.chunk)) {
			t.Fatalf("%+v: %d bytes are due at %s, the line is at %d", s, due, at, ideal)
		}
	})
}

// sink is a writer that records the time and size of each write, and can block.
type sink struct {
	start time.Time
	block func(elapsed time.Duration) time.Duration
	at    []time.Duration
	sizes []int
	bytes.Buffer
}

func (s *sink) Write(b []byte) (int, error) {
	elapsed := time.Since(s.start)
	if s.block != nil {
		time.Sleep(s.block(elapsed))
	}
	s.at = append(s.at, elapsed)
	s.sizes = append(s.sizes, len(b))
	return s.Buffer.Write(b)
}

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := schedule{rate: 25*unit.MbitPerSecond + 1, duration: 2*time.Second + 3*time.Millisecond, chunk: 10 * time.Millisecond}
		w := &sink{start: time.Now()}
		flushed := 0
		if err := pace(t.Context(), s, &filler{size: s.total()}, w, func() error { flushed++; return nil }); err != nil {
			t.Fatal(err)
		}
		if int64(w.Len()) != s.total() {
			t.Errorf("sent %d bytes, want %d", w.Len(), s.total())
		}
		chunks := 0
		for i, at := range w.at {
			if at%s.chunk != 0 {
				t.Errorf("write %d is at %s", i, at)
			}
			if i == 0 || at != w.at[i-1] {
				chunks++
			}
		}
		if chunks != 201 || flushed != chunks {
			t.Errorf("%d chunks, %d flushes, want 201", chunks, flushed)
		}
		if took := time.Since(w.start); took != 2*time.Second {
			t.Errorf("took %s, want 2s: the last chunk is sent when it begins", took)
		}
	})
}

func TestPaceCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := schedule{rate: 8 * unit.MbitPerSecond, duration: 3 * time.Second, chunk: 10 * time.Millisecond}
		w := &sink{start: time.Now(), block: func(elapsed time.Duration) time.Duration {
			if elapsed == time.Second {
				return 1234567 * time.Microsecond
			}
			return 0
		}}
		if err := pace(t.Context(), s, &filler{size: s.total()}, w, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		if int64(w.Len()) != s.total() {
			t.Errorf("sent %d bytes, want %d", w.Len(), s.total())
		}
		var sent int64
		for i, at := range w.at {
			sent += int64(w.sizes[i])
			late := at > time.Second && at < 2234567*time.Microsecond
			if late {
				t.Errorf("write at %s, while the sink blocks", at)
			}
			last := i == len(w.at)-1 || w.at[i+1] != at
			if last && at > 2240*time.Millisecond && sent != s.due(at) {
				t.Errorf("%d bytes are sent at %s, want %d: the schedule is absolute", sent, at, s.due(at))
			}
		}
		if took := time.Since(w.start); took != 2990*time.Millisecond {
			t.Errorf("took %s, want 2.99s", took)
		}
	})
}

func TestPaceWriteError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := schedule{rate: unit.MbitPerSecond, duration: time.Hour, chunk: maxChunk}
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		start := time.Now()
		if err := pace(ctx, s, &filler{size: s.total()}, io.Discard, func() error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("pace: %v, want the context's error", err)
		}
		if took := time.Since(start); took != 15*time.Second {
			t.Errorf("took %s, want 15s", took)
		}
		gone := errors.New("gone")
		if err := pace(t.Context(), s, &filler{size: s.total()}, io.Discard, func() error { return gone }); !errors.Is(err, gone) {
			t.Errorf("pace: %v, want the error of flush", err)
		}
	})
}

func TestParseSchedule(t *testing.T) {
	for _, tt := range []struct {
		query string
		want  schedule
	}{
		{"rate=25Mbit/s&duration=30s", schedule{25 * unit.MbitPerSecond, 30 * time.Second, 10 * time.Millisecond}},
		{"rate=25Mbit%2Fs&duration=500ms&chunk=1ms", schedule{25 * unit.MbitPerSecond, 500 * time.Millisecond, time.Millisecond}},
	} {
		if got, _, err := parseSchedule(tt.query); err != nil || got != tt.want {
			t.Errorf("parseSchedule(%q) = %+v, %v, want %+v", tt.query, got, err, tt.want)
		}
	}
	for _, tt := range []struct{ query, says string }{
		{"", `parameter "rate" is missing`},
		{"rate=1Mbit/s", `parameter "duration" is missing`},
		{"rate=1Mbit/s&duration=1s&rate=2Mbit/s", `parameter "rate" is given 2 times`},
		{"rate=1Mbit/s&duration=1s&speed=2", `parameter "speed" is unknown`},
		{"rate=25&duration=1s", "has no unit"},
		{"rate=25Mbps&duration=1s", "unknown unit"},
		{"rate=0bit/s&duration=1s", "rate must be > 0"},
		{"rate=1Mbit/s&duration=30", `duration "30" is not understood`},
		{"rate=1Mbit/s&duration=-1s", "duration must be > 0"},
		{"rate=1Mbit/s&duration=0s", "duration must be > 0"},
		{"rate=1bit/s&duration=1s", "less than one byte"},
		{"rate=1000000Tbit/s&duration=1000h", "is more than"},
		{"rate=1bit/s&duration=9000h", "duration must be at most"},
		{"rate=1Mbit/s&duration=1s&chunk=0s", "chunk must be from 1ms to 10s"},
		{"rate=1Mbit/s&duration=1s&chunk=", `chunk "" is not understood`},
		{"rate=%zz", "malformed"},
	} {
		if s, _, err := parseSchedule(tt.query); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("parseSchedule(%q) = %+v, %v, want it to say %q", tt.query, s, err, tt.says)
		}
	}
}

func FuzzParseSchedule(f *testing.F) {
	f.Add("rate=25Mbit/s&duration=30s&chunk=10ms")
	f.Add("rate=1bit/s&duration=2540400h10m10.000000000s")
	f.Add("rate=%zz;&duration=&chunk=1e9s")
	f.Fuzz(func(t *testing.T, query string) {
		s, _, err := parseSchedule(query)
		if err != nil {
			return
		}
		if s.total() <= 0 || s.total() > int64(maxContent) || s.due(0) > s.total() || s.due(s.duration) != s.total() {
			t.Errorf("%q is %+v: %d bytes", query, s, s.total())
		}
	})
}
