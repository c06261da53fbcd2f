package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// PinRoot is the BPF file system of daemons whose programs outlive them. It is not /sys/fs/bpf,
// which systemd keeps to root, nor in /run/tabane, where the daemons' user could replace what root
// mounts.
const PinRoot = "/run/tabane-bpf"

// PinDir returns the directory for the pins of a daemon's programs in the calling thread's network
// namespace, and mounts the file system at PinRoot if there is none. It returns a *feature.Error if
// it cannot. As root it takes over what the user of the units has pinned there.
func PinDir(daemon string) (string, error) {
	if !mounted(PinRoot) {
		if err := mount(PinRoot); err != nil {
			return "", missing("no BPF file system at "+PinRoot, "mount -t bpf bpf "+PinRoot, err)
		}
	}
	dir, err := PinPath(daemon)
	if err == nil && os.Geteuid() == 0 {
		err = own(dir)
	}
	return dir, err
}

// own gives a directory of pins to root, who drops the access to files of others after the start. Its
// parent belongs to root, and the group that it has: that of the units, whose user pins there as well.
func own(dir string) error {
	root := filepath.Dir(dir)
	if err := errors.Join(os.Lchown(root, 0, -1), os.Chmod(root, fs.ModeSticky|0o770)); err != nil {
		return fmt.Errorf("use BPF file system: %w", err)
	}
	in, err := os.OpenRoot(dir) // the user of the units may replace what is in it by links
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("take over pins: %w", err)
	}
	defer in.Close()
	err = fs.WalkDir(in.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, in.Lchown(path, 0, 0))
	})
	if err != nil {
		return fmt.Errorf("take over pins: %w", err)
	}
	return nil
}

// PinPath returns that directory, whether it exists or not.
func PinPath(daemon string) (string, error) {
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return "", fmt.Errorf("find network namespace: %w", err)
	}
	return filepath.Join(PinRoot, daemon+"-"+strconv.FormatUint(ns.Ino, 10)), nil
}

// RemovePinned removes the directory of pins that PinPath has returned. Without the file system there
// are none, and PinRoot may be a directory that this user cannot read.
func RemovePinned(dir string) error {
	err := os.RemoveAll(dir)
	if errors.Is(err, fs.ErrPermission) && !mounted(filepath.Dir(dir)) {
		return nil
	}
	return err
}

// mounted reports whether there is a BPF file system at a place.
func mounted(at string) bool {
	var fsys unix.Statfs_t
	return unix.Statfs(at, &fsys) == nil && uint32(fsys.Type) == unix.BPF_FS_MAGIC
}

func mount(at string) error {
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(at, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return unix.Mount("bpf", at, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700")
}

// Pins are the maps and tcx links of a set of programs, in a directory of a BPF file system: maps
// by the version of the programs, links for all versions, because a link gets the program of the
// next version. The zero value pins nothing. Not safe for concurrent use.
type Pins struct {
	dir, version string
	// used are the links that this process has attached or taken over.
	used map[string]bool
	kept bool // the maps are of this process
	// held is the directory, locked while this process uses it.
	held *os.File
}

// NewPins returns the pins in a directory; dir is empty for none. Maps can be taken over by
// programs of the same version.
func NewPins(dir, version string) Pins {
	return Pins{dir: dir, version: version, used: map[string]bool{}}
}

// hold locks the directory, so that others see that it is in use.
func (p *Pins) hold() error {
	if p.dir == "" || p.held != nil {
		return nil
	}
	f, err := os.Open(p.dir)
	if err == nil {
		// A lock of another process says the same.
		_ = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		p.held = f
	}
	return err
}

func (p *Pins) release() error {
	if p.held == nil {
		return nil
	}
	f := p.held
	p.held = nil
	return f.Close()
}

// Pinned is a directory of pins.
type Pinned struct {
	Dir string
	// Alive: a program passes packets. Used: a process uses the directory. One that is neither is
	// stale: its network namespace is gone.
	Alive, Used bool
}

// Stale reports whether the pins have no effect.
func (p Pinned) Stale() bool { return !p.Alive && !p.Used }

// AllPinned returns the directories of pins of a daemon, in all network namespaces.
func AllPinned(daemon string) ([]Pinned, error) { return allPinned(PinRoot, daemon) }

func allPinned(root, daemon string) ([]Pinned, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	var list []Pinned
	for _, e := range entries {
		// The rest of the name is the number of a network namespace.
		rest, ok := strings.CutPrefix(e.Name(), daemon+"-")
		if _, err := strconv.ParseUint(rest, 10, 64); !ok || err != nil || !e.IsDir() {
			continue
		}
		p := Pins{dir: filepath.Join(root, e.Name())}
		used, err := p.locked()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if errors.Is(err, fs.ErrPermission) {
			used, err = true, nil // of another user's daemon, which this one must leave alone
		}
		if err != nil {
			return nil, fmt.Errorf("examine pins: %w", err)
		}
		list = append(list, Pinned{Dir: p.dir, Alive: p.alive(), Used: used})
	}
	return list, nil
}

// locked reports whether a process uses the directory.
func (p *Pins) locked() (bool, error) {
	f, err := os.Open(p.dir)
	if err != nil {
		return false, err
	}
	defer f.Close()
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return true, nil
	default:
		return false, err
	}
}

// sweepStale removes what instances in network namespaces that are gone have left.
func (p *Pins) sweepStale() error {
	daemon, _, ok := strings.Cut(filepath.Base(p.dir), "-")
	if !ok {
		return nil
	}
	list, err := allPinned(filepath.Dir(p.dir), daemon)
	errs := []error{err}
	for _, other := range list {
		if other.Stale() && other.Dir != p.dir {
			errs = append(errs, os.RemoveAll(other.Dir))
		}
	}
	return errors.Join(errs...)
}

func (p *Pins) links() string { return filepath.Join(p.dir, "links") }
func (p *Pins) maps() string  { return filepath.Join(p.dir, "maps-"+p.version) }

// noDots makes names of pins, which have no dots: the kernel reserves them.
var noDots = strings.NewReplacer("%", "%25", ".", "%2E")

// Link returns where the link of a name is pinned, "" if it is not.
func (p *Pins) Link(name string) string {
	if p.dir == "" {
		return ""
	}
	name = noDots.Replace(name)
	p.used[name] = true
	return filepath.Join(p.links(), name)
}

// alive reports whether a link of a previous instance passes packets to its program: the kernel has
// it beyond the life of its interface, but without one.
func (p *Pins) alive() bool {
	entries, _ := os.ReadDir(p.links())
	for _, e := range entries {
		l, err := link.LoadPinnedLink(filepath.Join(p.links(), e.Name()), nil)
		if err != nil {
			continue
		}
		index, err := interfaceOf(l)
		_ = l.Close()
		if err == nil && index != 0 {
			return true
		}
	}
	return false
}

func interfaceOf(l link.Link) (uint32, error) {
	info, err := l.Info()
	if err != nil {
		return 0, err
	}
	if info.TCX() == nil {
		return 0, errors.New("pin is no tcx link")
	}
	return info.TCX().Ifindex, nil
}

// TakeOver returns the maps of a previous instance whose programs process packets; nil if there are
// none, or they are of another version. The caller closes them.
func (p *Pins) TakeOver(spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	if p.dir == "" || !p.alive() {
		return nil, nil
	}
	if err := p.hold(); err != nil {
		return nil, fmt.Errorf("use pins: %w", err)
	}
	maps := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		if strings.HasPrefix(name, ".") {
			continue // data of this version of the program, not state
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(p.maps(), name), nil)
		if err != nil {
			for _, other := range maps {
				_ = other.Close()
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil, nil // another version, or not all had been pinned
			}
			return nil, fmt.Errorf("open pin of map %q: %w", name, err)
		}
		maps[name] = m
	}
	return maps, nil
}

// Keep pins maps, those of a new instance, in place of those that are pinned there.
func (p *Pins) Keep(maps map[string]*ebpf.Map) error {
	if p.dir == "" {
		return nil
	}
	if err := errors.Join(os.RemoveAll(p.maps()), os.MkdirAll(p.maps(), 0o700), os.MkdirAll(p.links(), 0o700), p.hold()); err != nil {
		return fmt.Errorf("make directory of pins: %w", err)
	}
	for name, m := range maps {
		if err := p.KeepMap(name, m); err != nil {
			return err
		}
	}
	p.kept = true
	return nil
}

// KeepMap pins a map that was made after Keep.
func (p *Pins) KeepMap(name string, m *ebpf.Map) error {
	if p.dir == "" {
		return nil
	}
	if err := m.Pin(filepath.Join(p.maps(), name)); err != nil {
		return fmt.Errorf("pin map %q: %w", name, err)
	}
	return nil
}

// Map returns what KeepMap has pinned, in a previous instance that was taken over; fs.ErrNotExist
// if there is none. The caller closes it.
func (p *Pins) Map(name string) (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(p.maps(), name), nil)
	if err != nil {
		return nil, fmt.Errorf("open pin of map %q: %w", name, err)
	}
	return m, nil
}

// Sweep removes what a previous instance has pinned and this one has not taken over.
func (p *Pins) Sweep() error {
	if p.dir == "" {
		return nil
	}
	var errs []error
	entries, err := os.ReadDir(p.links())
	errs = append(errs, err)
	for _, e := range entries {
		if !p.used[e.Name()] {
			errs = append(errs, os.Remove(filepath.Join(p.links(), e.Name())))
		}
	}
	versions, err := filepath.Glob(filepath.Join(p.dir, "maps-*"))
	errs = append(errs, err)
	for _, v := range versions {
		if v != p.maps() {
			errs = append(errs, os.RemoveAll(v))
		}
	}
	return errors.Join(append(errs, p.sweepStale())...)
}

// Drop ends the use of the pins, and removes the maps that Keep has pinned if no link was attached.
func (p *Pins) Drop() error {
	err := p.release()
	if p.dir == "" || !p.kept || len(p.used) > 0 {
		return err
	}
	err = errors.Join(err, os.RemoveAll(p.maps()))
	// Those of links stay if there are links of a previous instance.
	_, _ = os.Remove(p.links()), os.Remove(p.dir)
	return err
}

// Remove removes all pins: programs go with the last process that holds them.
func (p *Pins) Remove() error {
	if p.dir == "" {
		return nil
	}
	return errors.Join(p.release(), os.RemoveAll(p.dir), p.sweepStale())
}
