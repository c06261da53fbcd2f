package openbpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/bpf"
)

const (
	sessionSlots  = 1 << 19
	sessionProbes = 32
	// mostFresh is how many deleted sessions the kernel is waited for at once, which takes
	// milliseconds.
	mostFresh = 1 << 14
	// tablePin is the name of the table's pin: the map that has it does not say which it is without
	// CAP_SYS_ADMIN.
	tablePin = "session-table"
)

// table is the hash table of sessions, which the program searches (session_with). It is made for
// the first session, because it is large. Its methods are safe for concurrent use.
type table struct {
	of   *ebpf.Map // that the program finds the table in
	spec *ebpf.MapSpec
	pins *bpf.Pins
	seed [6]uint32

	mu    sync.Mutex
	slots *ebpf.Map
	bytes []byte // of slots; nil without a table
	// fresh are slots whose session was deleted, but the program may be reading.
	fresh map[uint32]bool
}

// takeOver uses the table of a previous instance, if there is one.
func (t *table) takeOver() error {
	m, err := t.pins.Map(tablePin)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = t.use(m)
	}
	if err != nil {
		return fmt.Errorf("use NAT sessions of the previous instance: %w", err)
	}
	return nil
}

// make makes an empty table.
func (t *table) make() error {
	m, err := ebpf.NewMap(t.spec)
	if err != nil {
		return err
	}
	if err := t.pins.KeepMap(tablePin, m); err != nil {
		return errors.Join(err, m.Close())
	}
	return t.use(m)
}

func (t *table) use(m *ebpf.Map) (err error) {
	if t.bytes, err = unix.Mmap(m.FD(), 0, sessionSlots*int(unsafe.Sizeof(programSession{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return errors.Join(err, m.Close())
	}
	t.slots, t.fresh = m, map[uint32]bool{}
	return t.settle()
}

// settle waits until no program reads a session that was deleted: the kernel does when it replaces
// a map in another one.
func (t *table) settle() error {
	if err := t.of.Put(uint32(0), t.slots); err != nil {
		return err
	}
	clear(t.fresh)
	return nil
}

func (t *table) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bytes == nil {
		return nil
	}
	err := errors.Join(unix.Munmap(t.bytes), t.slots.Close())
	t.bytes = nil
	return err
}

func (t *table) slot(i uint32) *programSession {
	var s *programSession
	return (*programSession)(unsafe.Pointer(&t.bytes[uintptr(i)*unsafe.Sizeof(*s)]))
}

// probe returns the first slot where a key may be, and the distance to the next (hash_session).
func probe(seed *[6]uint32, k *programSessionKey) (slot, step uint32) {
	var w [6]uint32
	b := unsafe.Slice((*byte)(unsafe.Pointer(k)), unsafe.Sizeof(*k))
	for i := range w {
		w[i] = binary.NativeEndian.Uint32(b[4*i:]) + seed[i]
	}
	h := uint64(w[0])*uint64(w[1]) + uint64(w[2])*uint64(w[3]) + uint64(w[4])*uint64(w[5])
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	return uint32(h >> 32), uint32(h) | 1
}

// set sets the session of a key.
func (t *table) set(k programSessionKey, source [16]byte, state programSessionState, used time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bytes == nil {
		if err := t.make(); err != nil {
			return err
		}
	}
	i, ok := t.find(&k)
	if ok && t.slot(i).Source != source {
		t.drop(k)
		ok = false
	}
	if !ok {
		if i, ok = t.free(&k); !ok && len(t.fresh) > 0 {
			if err := t.settle(); err != nil {
				return err
			}
			i, ok = t.free(&k)
		}
		if !ok {
			return errors.New("no room")
		}
		s := t.slot(i)
		s.Key, s.Source, s.Tick = k, source, 0
	}
	s := t.slot(i)
	atomic.StoreUint64(&s.Used, uint64(used))
	atomic.StoreUint32(&s.State, uint32(state))
	return nil
}

// live reports whether there is a session in a slot.
func (s *programSession) live() bool {
	return s.State == uint32(programSessionStateSESSION_CLOSED) || s.State == uint32(programSessionStateSESSION_OPEN)
}

// find finds the session of a key, as the program does.
func (t *table) find(k *programSessionKey) (uint32, bool) {
	at, step := probe(&t.seed, k)
	for range sessionProbes {
		at &= sessionSlots - 1
		switch s := t.slot(at); {
		case s.State == uint32(programSessionStateSESSION_NONE):
			return 0, false
		case s.live() && s.Key == *k:
			return at, true
		}
		at += step
	}
	return 0, false
}

// free finds a slot for a key.
func (t *table) free(k *programSessionKey) (uint32, bool) {
	at, step := probe(&t.seed, k)
	for range sessionProbes {
		at &= sessionSlots - 1
		switch state := t.slot(at).State; {
		case state == uint32(programSessionStateSESSION_NONE), state == uint32(programSessionStateSESSION_DELETED) && !t.fresh[at]:
			return at, true
		}
		at += step
	}
	return 0, false
}

// delete deletes the session of a key, if there is one.
func (t *table) delete(k programSessionKey) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.drop(k); len(t.fresh) < mostFresh {
		return nil
	}
	return t.settle()
}

func (t *table) drop(k programSessionKey) {
	if t.bytes == nil {
		return
	}
	if i, ok := t.find(&k); ok {
		atomic.StoreUint32(&t.slot(i).State, uint32(programSessionStateSESSION_DELETED))
		t.fresh[i] = true
	}
}

// eachBatch is how many sessions are copied at once.
const eachBatch = 1024

// each calls a function with copies of the sessions, some at a time. Between, and meanwhile, they
// may change.
func (t *table) each(do func([]programSession)) {
	batch := make([]programSession, 0, eachBatch)
	for at := uint32(0); at < sessionSlots; {
		t.mu.Lock()
		if t.bytes == nil {
			t.mu.Unlock()
			return
		}
		for batch = batch[:0]; at < sessionSlots && len(batch) < eachBatch; at++ {
			if s := t.slot(at); s.live() {
				batch = append(batch, programSession{Key: s.Key, Source: s.Source, Used: atomic.LoadUint64(&s.Used), State: s.State})
			}
		}
		t.mu.Unlock()
		do(batch)
	}
}
