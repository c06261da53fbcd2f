package emulator

import "github.com/tabane/tabane/internal/base/unit"

// arena is the memory of the frames in a pipe, in slots with reference counts. It grows by chunks
// up to its limit and does not shrink.
type arena struct {
	slot     int // bytes
	maxSlots int
	chunks   [][]byte
	length   []int32
	refs     []uint8
	free     []int32
}

// chunkSlots is the number of slots per chunk.
const chunkSlots = 128

func newArena(longest int, memory unit.Size) *arena {
	return &arena{slot: longest, maxSlots: max(chunkSlots, int(memory/unit.Size(longest)))}
}

// take allocates a slot with one reference. It returns false when the limit is reached.
func (a *arena) take() (int32, bool) {
	if len(a.free) == 0 {
		first := len(a.refs)
		if first+chunkSlots > a.maxSlots {
			return 0, false
		}
		a.chunks = append(a.chunks, make([]byte, chunkSlots*a.slot))
		a.length = append(a.length, make([]int32, chunkSlots)...)
		a.refs = append(a.refs, make([]uint8, chunkSlots)...)
		for i := chunkSlots - 1; i >= 0; i-- {
			a.free = append(a.free, int32(first+i))
		}
	}
	last := len(a.free) - 1
	slot := a.free[last]
	a.free = a.free[:last]
	a.refs[slot] = 1
	return slot, true
}

// space returns the slot at its full length.
func (a *arena) space(slot int32) []byte {
	from := int(slot) % chunkSlots * a.slot
	return a.chunks[slot/chunkSlots][from : from+a.slot]
}

// fill sets the length of the frame in the slot.
func (a *arena) fill(slot int32, length int) { a.length[slot] = int32(length) }

// bytes returns the frame in the slot.
func (a *arena) bytes(slot int32) []byte { return a.space(slot)[:a.length[slot]] }

func (a *arena) Retain(slot int32) { a.refs[slot]++ }

func (a *arena) Release(slot int32) {
	switch a.refs[slot] {
	case 0:
		panic("BUG: slot of a frame released twice")
	case 1:
		a.free = append(a.free, slot)
	}
	a.refs[slot]--
}

// Mark sets Congestion Experienced in the frame if its transport is ECN-capable (RFC 3168 section
// 5).
func (a *arena) Mark(slot int32) bool { return mark(a.bytes(slot)) }

// used returns the number of slots in use.
func (a *arena) used() int { return len(a.refs) - len(a.free) }
