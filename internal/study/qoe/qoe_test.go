package qoe

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestEstimate(t *testing.T) {
	for _, tt := range []struct {
		context Context
		time    time.Duration
		want    float64
	}{
		{Fast, 100 * time.Millisecond, 5},
		{Fast, 670 * time.Millisecond, 5},
		{Fast, 6 * time.Second, 1},
		{Fast, time.Minute, 1},
		{Fast, 2 * time.Second, 3.005},  // a - b ln t with a = 4.27 and b = 1.82 gives 3.01
		{Slow, 10 * time.Second, 3.565}, // 5.72 and 0.936 give 3.56
	} {
		got, err := tt.context.Estimate(tt.time)
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(got.Score()-tt.want) > 0.005 {
			t.Errorf("%s: MOS of %s: got %v, want %v", tt.context, tt.time, got, tt.want)
		}
	}
	for _, bad := range []time.Duration{0, -time.Second} {
		if _, err := Fast.Estimate(bad); err == nil {
			t.Errorf("MOS of %s: no error", bad)
		}
	}
	if _, err := (Context{}).Estimate(time.Second); err == nil {
		t.Error("MOS in no context: no error")
	}
	if got := Fast.String(); got != "G.1030 fast: 0.67 s to 6 s" {
		t.Errorf("context: %q", got)
	}
}

func TestUsability(t *testing.T) {
	got, err := Of(3, 30*time.Second)
	if err != nil || got != (Usability{3, 6}) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := Of(-1, time.Second); err == nil {
		t.Error("negative number of conditions: no error")
	}
	if _, err := Of(1, 0); err == nil {
		t.Error("no time: no error")
	}
}

// gray is a frame of 100 pixels of which so many are black and the others white.
func gray(at time.Duration, black int) Frame {
	h := new(Histogram)
	for color := range h {
		h[color][0], h[color][255] = black, 100-black
	}
	return Frame{at, h}
}

func TestProgress(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name   string
		frames []Frame
		want   Visual
	}{
		{"at once", []Frame{gray(0, 0), gray(200*ms, 80)}, Visual{200 * ms, 200 * ms, 200 * ms}},
		{"in two halves", []Frame{gray(0, 0), gray(100*ms, 40), gray(300*ms, 80)}, Visual{100 * ms, 300 * ms, 200 * ms}},
		{"a repeated frame is no change", []Frame{gray(0, 0), gray(100*ms, 0), gray(300*ms, 80), gray(900*ms, 80)}, Visual{300 * ms, 300 * ms, 300 * ms}},
		{"a worse frame is not below 0", []Frame{gray(0, 50), gray(100*ms, 0), gray(200*ms, 100)}, Visual{100 * ms, 200 * ms, 200 * ms}},
	} {
		got, err := Progress(tt.frames)
		if err != nil || got != tt.want {
			t.Errorf("%s: got %+v, %v, want %+v", tt.name, got, err, tt.want)
		}
	}
	for name, tt := range map[string]struct {
		frames []Frame
		want   error
	}{
		"none":            {nil, ErrFrames},
		"no start":        {[]Frame{gray(ms, 0), gray(2*ms, 1)}, ErrFrames},
		"falling":         {[]Frame{gray(0, 0), gray(2*ms, 1), gray(ms, 2)}, ErrFrames},
		"no histogram":    {[]Frame{gray(0, 0), {At: ms}}, ErrFrames},
		"nothing changes": {[]Frame{gray(0, 1), gray(ms, 1)}, ErrNoChange},
	} {
		if _, err := Progress(tt.frames); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", name, err, tt.want)
		}
	}
}

// TestSpeedIndexIsBounded: it is between the first change and the last one.
func TestSpeedIndexIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(1, 1000), 1, 20).Draw(t, "steps")
		frames, at := []Frame{gray(0, 0)}, time.Duration(0)
		for i, s := range steps {
			at += time.Duration(s) * time.Millisecond
			frames = append(frames, gray(at, 100*(i+1)/len(steps)))
		}
		v, err := Progress(frames)
		if err != nil {
			t.Fatal(err)
		}
		if v.SpeedIndex < v.First-time.Microsecond || v.SpeedIndex > v.Last || v.Last != at {
			t.Fatalf("got %+v for %d frames until %s", v, len(frames), at)
		}
	})
}
