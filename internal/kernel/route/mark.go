package route

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/tabane/tabane/internal/kernel/bpf"
)

// marks are the programs of routes and nexthop objects with a mark. It is safe for concurrent use.
type marks struct {
	mu       sync.Mutex
	programs map[marking]*bpf.Mark
}

// marking is what a program does: it sets a mark on packets that are received, or sent.
type marking struct {
	mark uint32
	sent bool
}

// program returns the file descriptor of a program.
func (m *marks) program(k marking) (uint32, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.programs[k]
	if p == nil {
		load := bpf.LoadMark
		if k.sent {
			load = bpf.LoadSentMark
		}
		var err error
		if p, err = load(k.mark); err != nil {
			return 0, fmt.Errorf("load program for mark %#x: %w", k.mark, err)
		}
		if m.programs == nil {
			m.programs = map[marking]*bpf.Mark{}
		}
		m.programs[k] = p
	}
	return p.FD(), nil
}

func (m *marks) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, p := range m.programs {
		errs = append(errs, p.Close())
	}
	m.programs = nil
	return errors.Join(errs...)
}

// markPrefix begins the names of the programs of marks. Of a program the kernel reports the name
// alone.
const markPrefix = "tabane-mark-"

func markName(mark uint32) string { return markPrefix + strconv.FormatUint(uint64(mark), 16) }

// markOf is the inverse of markName.
func markOf(name string) (mark uint32, ok bool) {
	text, ok := strings.CutPrefix(name, markPrefix)
	n, err := strconv.ParseUint(text, 16, 32)
	return uint32(n), ok && err == nil && n != 0 && name == markName(uint32(n))
}
