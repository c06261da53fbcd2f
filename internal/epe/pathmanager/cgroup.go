package pathmanager

import (
	"bufio"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// cgroupsEvery is how often the cgroups beneath a path are read, when there is a socket of
	// another one.
	cgroupsEvery = time.Second
	// maxCgroups bounds how many are read.
	maxCgroups = 10000
)

// cgroups finds the cgroups of version 2 beneath paths by their IDs, which are inode numbers.
type cgroups struct {
	root   string // where they are mounted; "": nowhere
	now    func() time.Time
	byPath map[string]*cgroupTree
}

type cgroupTree struct {
	ids  map[uint64]bool
	read time.Time
}

func newCgroups() *cgroups {
	return &cgroups{root: cgroupRoot("/proc/self/mountinfo"), now: time.Now, byPath: map[string]*cgroupTree{}}
}

// cgroupRoot returns where cgroups of version 2 are mounted (proc(5)).
func cgroupRoot(mounts string) string {
	f, err := os.Open(mounts)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		own, kind, _ := strings.Cut(lines.Text(), " - ")
		if fields := strings.Fields(own); strings.HasPrefix(kind, "cgroup2 ") && len(fields) > 4 {
			return fields[4]
		}
	}
	return ""
}

// contains reports whether a cgroup is the one of a path or beneath it. A service that starts again
// has a new one.
func (c *cgroups) contains(id uint64, path string) bool {
	if id == 0 || c.root == "" {
		return false
	}
	t := c.byPath[path]
	if t == nil {
		t = &cgroupTree{}
		c.byPath[path] = t
	}
	if now := c.now(); !t.ids[id] && now.Sub(t.read) >= cgroupsEvery {
		t.ids, t.read = beneath(filepath.Join(c.root, path)), now
	}
	return t.ids[id]
}

// beneath returns the inode numbers of a directory and of those in it.
func beneath(root string) map[uint64]bool {
	ids := map[uint64]bool{}
	_ = filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // it may have gone meanwhile
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			ids[s.Ino] = true
		}
		if len(ids) >= maxCgroups {
			return filepath.SkipAll
		}
		return nil
	})
	return ids
}
