package browser

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"math"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/study/qoe"
)

const (
	// frameSize bounds the width and the height of a frame in pixels, maxFrames their number and
	// maxRecorded their size in bytes.
	frameSize   = 400
	maxFrames   = 4000
	maxRecorded = 64 << 20
)

// rawFrame is a frame as the browser sent it, since the epoch.
type rawFrame struct {
	at   time.Duration
	data []byte
}

// record starts to record frames.
func (p *Page) record(ctx context.Context) error {
	return p.call(ctx, "Page.startScreencast", map[string]any{"format": "jpeg", "quality": 80, "maxWidth": frameSize, "maxHeight": frameSize, "everyNthFrame": 1}, nil)
}

// frame handles the event of a frame. Frames are decoded by Frames, not while the page loads.
func (p *Page) frame(params []byte) {
	f, session, err := decodeFrame(params)
	if err == nil {
		_, _, err = p.browser.connection.send(p.session, "Page.screencastFrameAck", map[string]any{"sessionId": session})
	}
	if err != nil {
		p.report(Progress{}, err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.recorded += len(f.data); len(p.frames) >= maxFrames || p.recorded > maxRecorded {
		p.failed = fmt.Errorf("the page has more than %d frames or %d bytes of frames", maxFrames, maxRecorded)
		return
	}
	p.frames = append(p.frames, f)
}

// decodeFrame decodes the parameters of Page.screencastFrame: the frame, not yet its image, and the
// number by which it is acknowledged.
func decodeFrame(params []byte) (f rawFrame, session int64, _ error) {
	var v struct {
		Data     string `json:"data"`
		Metadata struct {
			Timestamp float64 `json:"timestamp"`
		} `json:"metadata"`
		Session int64 `json:"sessionId"`
	}
	if err := json.Unmarshal(params, &v); err != nil {
		return f, 0, fmt.Errorf("decode frame: %w", err)
	}
	if t := v.Metadata.Timestamp; !(t >= 0 && t < math.MaxInt64/float64(2*time.Second)) {
		return f, 0, fmt.Errorf("decode frame: time must be >= 0 s, got %v", t)
	}
	f.at = time.Duration(v.Metadata.Timestamp * float64(time.Second))
	var err error
	if f.data, err = base64.StdEncoding.DecodeString(v.Data); err != nil {
		return f, 0, fmt.Errorf("decode frame: %w", err)
	}
	return f, v.Session, nil
}

// Frames stops the recording and returns the frames since the start of the navigation, which m
// measured. The first is white, as an empty page is.
func (p *Page) Frames(ctx context.Context, m Measures) ([]qoe.Frame, error) {
	if err := p.call(ctx, "Page.stopScreencast", nil, nil); err != nil {
		return nil, err
	}
	p.mu.Lock()
	raw := slices.Clone(p.frames)
	p.mu.Unlock()
	// A busy browser sends frames out of order.
	slices.SortStableFunc(raw, func(a, b rawFrame) int { return cmp.Compare(a.at, b.at) })
	var frames []qoe.Frame
	for _, r := range raw {
		if r.at <= m.origin {
			continue
		}
		h, err := decodeHistogram(r.data)
		if err != nil {
			return nil, fmt.Errorf("decode frame: %w", err)
		}
		if len(frames) == 0 {
			frames = append(frames, qoe.Frame{Histogram: white(h)})
		}
		frames = append(frames, qoe.Frame{At: r.at - m.origin, Histogram: h})
	}
	if len(frames) == 0 {
		return nil, errors.New("the browser recorded no frame of the page")
	}
	return frames, nil
}

// white is the histogram of a white frame with as many pixels as h.
func white(h *qoe.Histogram) *qoe.Histogram {
	w := new(qoe.Histogram)
	for color := range h {
		for _, n := range h[color] {
			w[color][255] += n
		}
	}
	return w
}

// decodeHistogram decodes a JPEG image into its histogram.
func decodeHistogram(data []byte) (*qoe.Histogram, error) {
	config, err := jpeg.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if config.Width > frameSize || config.Height > frameSize {
		return nil, fmt.Errorf("is larger than %d x %d pixels: %d x %d", frameSize, frameSize, config.Width, config.Height)
	}
	img, err := jpeg.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	h := new(qoe.Histogram)
	b := img.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			r, g, blue := rgb(img, x, y)
			h[0][r]++
			h[1][g]++
			h[2][blue]++
		}
	}
	return h, nil
}

func rgb(img image.Image, x, y int) (r, g, b uint8) {
	if ycc, ok := img.(*image.YCbCr); ok { // without the detour over an interface
		c := ycc.YCbCrAt(x, y)
		return color.YCbCrToRGB(c.Y, c.Cb, c.Cr)
	}
	r16, g16, b16, _ := img.At(x, y).RGBA()
	return uint8(r16 >> 8), uint8(g16 >> 8), uint8(b16 >> 8)
}
