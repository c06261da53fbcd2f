package sealed

import (
	"sync"
	"sync/atomic"

	"github.com/tabane/tabane/internal/gateway/udp"
)

// held is a packet in a buffer, which it keeps from being used again.
type held struct {
	packet []byte
	buffer *buffer
}

// buffer is what one message of a socket, or a single packet, is in.
type buffer struct {
	data []byte
	refs atomic.Int32
}

const (
	// smallBufferLen is the room of a buffer for a packet that is copied, because the kernel has
	// merged few with it: a large buffer for each would take much memory while packets wait.
	smallBufferLen = 2048
	minMerged      = 4
)

var (
	smallBuffers = sync.Pool{New: func() any { return &buffer{data: make([]byte, smallBufferLen)} }}
	largeBuffers = sync.Pool{New: func() any { return &buffer{data: make([]byte, udp.BufferLen)} }}
)

// release drops a reference.
func (b *buffer) release() {
	if b.refs.Add(-1) > 0 {
		return
	}
	if len(b.data) == smallBufferLen {
		smallBuffers.Put(b)
	} else {
		largeBuffers.Put(b)
	}
}

// hold returns a packet with a reference to its buffer, or copied to a small one.
func hold(o *opened) held {
	if o.merged >= minMerged || len(o.packet) > smallBufferLen {
		o.buffer.refs.Add(1)
		return held{o.packet, o.buffer}
	}
	b := smallBuffers.Get().(*buffer)
	b.refs.Store(1)
	return held{b.data[:copy(b.data, o.packet)], b}
}
