package content

import (
	"encoding/binary"
	"hash/adler32"
	"hash/crc32"
	"image/color"
)

// The format of images is PNG with stored (uncompressed) deflate blocks. So an image's size depends
// on its dimensions alone, and not on the compressor of a Go version: the generator knows the bytes
// of a page without drawing it, and a server needs little CPU to draw one.

// picture has the dimensions of an image.
type picture struct {
	width, height int
	// depth is the number of bits of a pixel, 4 or 8; the palette has all colors of that depth.
	depth int
}

// Lengths in bytes of the parts of a PNG file (RFC 2083) and of its zlib stream (RFC 1950, RFC
// 1951).
const (
	pngSignature = "\x89PNG\r\n\x1a\n"
	chunkFrame   = 12 // length, type and CRC
	headerSize   = 13
	zlibFrame    = 6     // header and checksum
	storedFrame  = 5     // header of a stored block
	storedMax    = 65535 // content of a stored block
)

// row returns the bytes of one row: the filter and the pixels.
func (p picture) row() int { return 1 + (p.width*p.depth+7)/8 }

// stream returns the length of the zlib stream.
func (p picture) stream() int {
	raw := p.row() * p.height
	return zlibFrame + raw + storedFrame*((raw+storedMax-1)/storedMax)
}

// size returns the length of the file.
func (p picture) size() int {
	return len(pngSignature) + 4*chunkFrame + headerSize + 3<<p.depth + p.stream()
}

// encode returns the file. draw sets the pixels of one row, a byte each.
func (p picture) encode(palette []color.RGBA, draw func(y int, pixels []byte)) []byte {
	raw := make([]byte, 0, p.row()*p.height)
	pixels := make([]byte, p.width)
	for y := range p.height {
		draw(y, pixels)
		raw = append(raw, 0) // no filter
		if p.depth == 8 {
			raw = append(raw, pixels...)
			continue
		}
		for x := 0; x < p.width; x += 2 {
			b := pixels[x] << 4
			if x+1 < p.width {
				b |= pixels[x+1]
			}
			raw = append(raw, b)
		}
	}

	out := append(make([]byte, 0, p.size()), pngSignature...)
	header := binary.BigEndian.AppendUint32(nil, uint32(p.width))
	header = binary.BigEndian.AppendUint32(header, uint32(p.height))
	out = chunk(out, "IHDR", append(header, byte(p.depth), 3, 0, 0, 0)) // 3: indexed colors
	colors := make([]byte, 3<<p.depth)
	for i, c := range palette {
		copy(colors[3*i:], []byte{c.R, c.G, c.B})
	}
	out = chunk(out, "PLTE", colors)
	sum := adler32.Checksum(raw)
	stream := append(make([]byte, 0, p.stream()), 0x78, 0x01)
	for len(raw) > 0 {
		n := min(len(raw), storedMax)
		final := byte(0)
		if n == len(raw) {
			final = 1
		}
		stream = append(stream, final)
		stream = binary.LittleEndian.AppendUint16(stream, uint16(n))
		stream = binary.LittleEndian.AppendUint16(stream, ^uint16(n))
		stream = append(stream, raw[:n]...)
		raw = raw[n:]
	}
	out = chunk(out, "IDAT", binary.BigEndian.AppendUint32(stream, sum))
	return chunk(out, "IEND", nil)
}

func chunk(out []byte, name string, data []byte) []byte {
	out = binary.BigEndian.AppendUint32(out, uint32(len(data)))
	start := len(out)
	out = append(append(out, name...), data...)
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out[start:]))
}
