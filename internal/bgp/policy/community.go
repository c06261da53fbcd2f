package policy

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tabane/tabane/internal/bgp/message"
)

// Community is a community (RFC 1997), such as "65000:100" or "no-export", or a large community
// (RFC 8092), such as "65536:1:2".
type Community struct {
	Large bool
	// Value holds a community in its first element, a large one in all three.
	Value [3]uint32
}

// wellKnown are names of well-known communities, as in the IANA registry.
var wellKnown = map[string]uint32{
	"graceful-shutdown": message.GracefulShutdown,
	"blackhole":         message.Blackhole,
	"no-export":         message.NoExport,
	"no-advertise":      message.NoAdvertise,
}

// Standard returns a community of RFC 1997.
func Standard(value uint32) Community { return Community{Value: [3]uint32{value}} }

// UnmarshalText parses a community.
func (c *Community) UnmarshalText(text []byte) error {
	if value, ok := wellKnown[string(text)]; ok {
		*c = Standard(value)
		return nil
	}
	parts := strings.Split(string(text), ":")
	var n [3]uint32
	bits := 16
	if len(parts) == 3 {
		bits = 32
	}
	ok := len(parts) == 2 || len(parts) == 3
	for i := 0; ok && i < len(parts); i++ {
		v, err := strconv.ParseUint(parts[i], 10, bits)
		ok = err == nil && strconv.FormatUint(v, 10) == parts[i]
		n[i] = uint32(v)
	}
	switch {
	case !ok:
		return fmt.Errorf(`want a community like "65000:100", a large one like "65536:1:2", no-export, no-advertise, graceful-shutdown or blackhole, got %q`, text)
	case len(parts) == 2:
		*c = Standard(n[0]<<16 | n[1])
	default:
		*c = Community{true, n}
	}
	return nil
}

// MarshalText returns the text that UnmarshalText parses.
func (c Community) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

func (c Community) String() string {
	if c.Large {
		return fmt.Sprintf("%d:%d:%d", c.Value[0], c.Value[1], c.Value[2])
	}
	for name, value := range wellKnown {
		if value == c.Value[0] {
			return name
		}
	}
	return fmt.Sprintf("%d:%d", c.Value[0]>>16, c.Value[0]&0xffff)
}
