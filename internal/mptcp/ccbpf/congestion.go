// Package ccbpf loads congestion controls of TCP and MPTCP into the kernel, as eBPF programs
// (struct_ops of type tcp_congestion_ops). They are in bpf/mptcp/cc; their arithmetic,
// bpf/lib/cc.h, is that of package cc.
//
// Each control is one link, pinned in a directory of a BPF file system: it is loaded whole or not
// at all, and stays when the process ends. The name of the link's map is the version, so that no
// other state has to agree with it. The package does not choose who uses a control: that is for
// sysctls and sockets.
package ccbpf

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/netns"
)

// Cubic is the kernel's own control.
const Cubic = "cubic"

const (
	// DefaultPrefix is that of the names that sysctls and sockets use: "tabane_lia".
	DefaultPrefix = "tabane_"
	// DefaultDir is where links are pinned.
	DefaultDir = "/sys/fs/bpf/tabane/cc"

	// StatsMap is the name of the maps of Stats.
	StatsMap = "tabane_cc"
)

// control is a congestion control that can be loaded.
type control struct {
	name   string
	object []byte
	spec   func() (*ebpf.CollectionSpec, error)
	// coupled is set for those that need MPTCP.
	coupled bool
	// state is the type of the state of the kernel's own control that this one runs, if it is one.
	state string
}

var controls = []control{
	{name: "newreno", object: _NewrenoBytes, spec: loadNewreno},
	{name: Cubic, object: _CubicBytes, spec: loadCubic, state: "bictcp"},
	{name: "lia", object: _LiaBytes, spec: loadLia, coupled: true},
	{name: "olia", object: _OliaBytes, spec: loadOlia, coupled: true},
	{name: "balia", object: _BaliaBytes, spec: loadBalia, coupled: true},
	{name: "vegas", object: _VegasBytes, spec: loadVegas},
	{name: "wvegas", object: _WvegasBytes, spec: loadWvegas, coupled: true},
	{name: Ratio, object: _RatioBytes, spec: loadRatio, coupled: true},
}

// Names returns the names that Load accepts.
func Names() []string {
	names := make([]string, len(controls))
	for i, c := range controls {
		names[i] = c.name
	}
	return names
}

// find returns the control with the name.
func find(name string) (control, error) {
	for _, c := range controls {
		if c.name == name {
			return c, nil
		}
	}
	return control{}, fmt.Errorf("no such control, want one of %s", strings.Join(Names(), ", "))
}

// Options are the parameters of Load.
type Options struct {
	// Dir is where the link is pinned, DefaultDir if empty.
	Dir string
	// Pace makes sockets pace their packets instead of sending bursts.
	Pace bool
	// Lowat bounds the unsent data of MPTCP subflows to what fits into their window and what they
	// send in 20 ms (TCP_NOTSENT_LOWAT), enlarges their send buffers, and paces those below 400
	// Mbit/s.
	Lowat bool
	// Rates are those of the subflows for Ratio, at most MaxRates.
	Rates []unit.Bandwidth
	// Prefix is that of the name in the kernel, DefaultPrefix if empty. Tests have one of their
	// own, because names are those of the whole host.
	Prefix string

	// inject makes every inject-th call that returns a value return garbage; 0 is never.
	inject uint32
}

// Defaults returns the default options of a control: all pace except the kernel's own, which has
// Lowat instead.
func Defaults(name string) Options { return Options{Pace: name != Cubic, Lowat: name == Cubic} }

func (o *Options) fill() {
	o.Dir, o.Prefix = cmp.Or(o.Dir, DefaultDir), cmp.Or(o.Prefix, DefaultPrefix)
}

// Version identifies the programs of a control and how they were loaded.
type Version string

// The prefixes of versions.
const (
	paced = "paced_"
	burst = "burst_"
	// bounded is the suffix with Options.Lowat; no other version ends with it.
	bounded = "l"
)

// Paced reports whether sockets of this version pace their packets.
func (v Version) Paced() bool { return strings.HasPrefix(string(v), paced) }

// Lowat reports whether MPTCP subflows of this version bound their unsent data.
func (v Version) Lowat() bool { return strings.HasSuffix(string(v), bounded) }

// version returns that of a control with the options. It is at most 15 bytes long, as names of maps
// are.
func (c control) version(o Options) Version {
	sum := sha256.Sum256(fmt.Appendf(c.object, "%d", o.inject))
	kind := burst
	if o.Pace {
		kind = paced
	}
	version := Version(kind + hex.EncodeToString(sum[:4]))
	if o.Lowat {
		version += bounded
	}
	return version
}

// Outcome is what Load did.
type Outcome int

// The outcomes of Load.
const (
	// Loaded: the control was not there before.
	Loaded Outcome = iota
	// Replaced: new connections use the new version; running ones keep the version that they began
	// with.
	Replaced
	// Unchanged: this version was loaded before.
	Unchanged
)

// ErrTaken is returned by Load when a control that it did not load has the name.
var ErrTaken = errors.New("another congestion control has this name")

// Load loads a control, or replaces another version of it. It returns a *feature.Error when this
// host cannot load it.
func Load(name string, o Options) (_ Outcome, err error) {
	o.fill()
	c, err := find(name)
	if err != nil {
		return 0, err
	}
	if err := supported(c); err != nil {
		return 0, err
	}
	if err := makeDir(o.Dir); err != nil {
		return 0, err
	}
	pin := filepath.Join(o.Dir, name)
	version := c.version(o)
	rates, err := keptRates(o.Dir, name)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, rates.Close()) }()
	before, err := open(pin)
	switch {
	case err == nil:
		defer func() { err = errors.Join(err, before.Close()) }()
		// Without their pin, the rates of what is loaded cannot be changed.
		if before.version == version && (name != Ratio || rates != nil) {
			return Unchanged, SetRates(o.Dir, name, o.Rates)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return 0, err
	}
	loaded, err := c.load(o, version, rates)
	if err != nil {
		return 0, err
	}
	defer loaded.Close()
	// The link is last: without it the control is not loaded.
	if name == Ratio {
		if err := pinRates(loaded.Maps[ratioMapRates], rates == nil, o); err != nil {
			return 0, err
		}
	}
	ops := loaded.Maps[newrenoMapOps]
	if before != nil {
		return Replaced, before.update(ops)
	}
	l, err := register(ops)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := l.Pin(pin); err != nil {
		return 0, fmt.Errorf("pin: %w", err)
	}
	return Loaded, nil
}

// Attach loads a control that is not pinned: the kernel removes its name when the returned link is
// closed, or this process ends. It returns the same errors as Load.
func Attach(name string, o Options) (io.Closer, error) {
	o.fill()
	c, err := find(name)
	if err != nil {
		return nil, err
	}
	if err := supported(c); err != nil {
		return nil, err
	}
	loaded, err := c.load(o, c.version(o), nil)
	if err != nil {
		return nil, err
	}
	defer loaded.Close()
	return register(loaded.Maps[newrenoMapOps])
}

// register registers a control, whose name must be free, with the kernel.
func register(ops *ebpf.Map) (link.Link, error) {
	l, err := link.AttachStructOps(link.StructOpsOptions{Map: ops})
	if errors.Is(err, fs.ErrExist) {
		return nil, ErrTaken
	}
	if err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	return l, nil
}

// load loads the programs and the map of the control, without registering it. If it has rates, they
// are in the map rates, or in a new one if that is nil.
func (c control) load(o Options, version Version, rates *ebpf.Map) (*ebpf.Collection, error) {
	spec, err := c.spec()
	if err != nil {
		return nil, err
	}
	most := uint32(0)
	if o.Lowat {
		if most, err = bufferMost(); err != nil {
			return nil, err
		}
	}
	for name, value := range map[string]any{newrenoVarPace: o.Pace, newrenoVarLowat: o.Lowat, newrenoVarBufferMost: most, newrenoVarInject: o.inject} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %q: %w", name, err)
		}
	}
	ops := spec.Maps[newrenoMapOps]
	ops.Name = string(version)
	if err := rename(ops, o.Prefix+c.name); err != nil {
		return nil, err
	}
	var maps map[string]*ebpf.Map
	if rates != nil {
		maps = map[string]*ebpf.Map{ratioMapRates: rates}
	}
	return bpf.LoadAll(spec, needLinux, kernelTypes, maps)
}

// bufferMost returns how large a control may make send buffers, in bytes: as sockets may, which is
// twice net.core.wmem_max. 0 if the kernel makes them larger itself, as without a setting before
// Linux 6.18.
func bufferMost() (uint32, error) {
	var most [2]uint64
	for i, key := range []string{"net.core.wmem_max", "net.ipv4.tcp_wmem"} {
		text, err := netns.ReadSysctl(key)
		if err != nil {
			return 0, err
		}
		last := text[strings.LastIndexAny(text, " \t")+1:]
		if most[i], err = strconv.ParseUint(last, 10, 31); err != nil {
			return 0, fmt.Errorf("read sysctl %q: %w", key, err)
		}
	}
	if 2*most[0] < most[1] {
		return 0, nil
	}
	return uint32(min(2*most[0], math.MaxInt32)), nil
}

// rename sets the name in a struct tcp_congestion_ops.
func rename(ops *ebpf.MapSpec, name string) error {
	value, ok := ops.Contents[0].Value.([]byte)
	s, also := ops.Value.(*btf.Struct)
	if !ok || !also {
		return errors.New("BUG: the object has no struct_ops")
	}
	for _, m := range s.Members {
		if m.Name != "name" {
			continue
		}
		field := value[m.Offset.Bytes():][:maxName+1]
		if len(name) > maxName {
			return fmt.Errorf("BUG: name %q is longer than %d bytes", name, maxName)
		}
		clear(field)
		copy(field, name)
		return nil
	}
	return errors.New("BUG: the struct_ops has no name")
}

// maxName is the longest name of a congestion control (TCP_CA_NAME_MAX without the zero).
const maxName = 15

// kernelState is how many bytes of the state of a socket the kernel's own control may have:
// KERNEL_STATE of cubic.c.
const kernelState = 64

// kernelTypes are decoded at first use, and once.
var kernelTypes = btf.NewCache()

// supported returns a *feature.Error if the kernel lacks what the control needs.
func supported(c control) error {
	kernel, err := kernelTypes.Kernel()
	if err != nil {
		return missing("this kernel has no BTF", "use a kernel with CONFIG_DEBUG_INFO_BTF=y", nil)
	}
	has := func(name string) bool {
		_, err := kernel.AnyTypesByName(name)
		return err == nil
	}
	switch {
	case !has("bpf_struct_ops_tcp_congestion_ops"), !has("bpf_struct_ops_link"):
		return missing("this kernel has no struct_ops for TCP", needLinux, nil)
	case c.coupled && !has("mptcp_subflow_context"):
		return missing("this kernel has no MPTCP, which "+c.name+" needs", "use a kernel with CONFIG_MPTCP=y, or newreno or vegas", nil)
	case c.coupled && !has("bpf_rdonly_cast"):
		return missing("this kernel is too old for "+c.name, needLinux, nil)
	case c.state != "":
		var state *btf.Struct
		if err := kernel.TypeByName(c.state, &state); err != nil {
			return missing("this kernel has no built-in "+c.name, "use a kernel with CONFIG_TCP_CONG_"+strings.ToUpper(c.name)+"=y", nil)
		}
		if state.Size > kernelState {
			return missing(fmt.Sprintf("the state of this kernel's %s is %d bytes, more than the %d that are known", c.name, state.Size, kernelState), "use another control", nil)
		}
	}
	return nil
}

// Supported returns a *feature.Error if this kernel lacks what the controls need. Whether this
// process may load them shows only Load.
func Supported() error {
	for _, c := range controls {
		if c.state != "" { // what the kernel's own controls need, the others do not
			continue
		}
		if err := supported(c); err != nil {
			return err
		}
	}
	return nil
}

const needLinux = "use Linux 6.6 or newer with CONFIG_BPF_JIT=y"

func missing(reason, remedy string, err error) error {
	return &feature.Error{Feature: "congestion control by eBPF", Reason: reason, Remedy: remedy, Err: err}
}

// makeDir makes the directory of pins, which must be in a BPF file system.
func makeDir(dir string) error {
	if err := Mounted(dir); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o700)
}

// Mounted returns a *feature.Error unless the directory, or what exists of the path to it, is in a
// BPF file system.
func Mounted(dir string) error {
	for at := dir; ; at = filepath.Dir(at) {
		var s unix.Statfs_t
		err := unix.Statfs(at, &s)
		if errors.Is(err, unix.ENOENT) && at != filepath.Dir(at) {
			continue
		}
		if err != nil {
			return fmt.Errorf("examine %q: %w", at, err)
		}
		if uint32(s.Type) != unix.BPF_FS_MAGIC {
			return missing("no BPF file system is mounted at "+at, "mount -t bpf bpf /sys/fs/bpf", nil)
		}
		return nil
	}
}

// pinned is the link of a control that is loaded.
type pinned struct {
	link.Link
	fd      int
	ops     *ebpf.Map
	version Version
}

// open opens the pinned link of a control. The error matches fs.ErrNotExist if there is none.
func open(pin string) (_ *pinned, err error) {
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return nil, fmt.Errorf("open pin: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	file, ok := l.(interface{ FD() int })
	if !ok {
		return nil, fmt.Errorf("open pin: it is a %T", l)
	}
	p := &pinned{Link: l, fd: file.FD()}
	id, err := mapOf(p.fd)
	if err != nil {
		return nil, err
	}
	if p.ops, err = ebpf.NewMapFromID(id); err != nil {
		return nil, fmt.Errorf("open map of link: %w", err)
	}
	info, err := p.ops.Info()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read map of link: %w", err), p.ops.Close())
	}
	p.version = Version(info.Name)
	return p, nil
}

func (p *pinned) Close() error { return errors.Join(p.ops.Close(), p.Link.Close()) }

// linkInfo is struct bpf_link_info of include/uapi/linux/bpf.h up to struct_ops.map_id.
type linkInfo struct {
	kind, id, program, _ uint32
	mapID                uint32
	_                    [64 - 20]byte
}

// mapOf returns the map of a struct_ops link, which the library does not.
func mapOf(fd int) (ebpf.MapID, error) {
	const getInfo = 15 // BPF_OBJ_GET_INFO_BY_FD
	var info linkInfo
	attr := struct {
		fd, size uint32
		info     uint64
	}{uint32(fd), uint32(unsafe.Sizeof(info)), uint64(uintptr(unsafe.Pointer(&info)))}
	if err := call(getInfo, unsafe.Pointer(&attr), unsafe.Sizeof(attr)); err != nil {
		return 0, fmt.Errorf("read link: %w", err)
	}
	if info.kind != uint32(link.StructOpsType) {
		return 0, fmt.Errorf("read link: it has type %d, want %d", info.kind, link.StructOpsType)
	}
	return ebpf.MapID(info.mapID), nil
}

// update replaces the programs of the link, which the library refuses. New connections use those of
// the map.
func (p *pinned) update(ops *ebpf.Map) error {
	const update = 29 // BPF_LINK_UPDATE
	attr := struct{ link, ops, flags, old uint32 }{uint32(p.fd), uint32(ops.FD()), 0, 0}
	if err := call(update, unsafe.Pointer(&attr), unsafe.Sizeof(attr)); err != nil {
		return fmt.Errorf("replace: %w", err)
	}
	return nil
}

func call(command uintptr, attr unsafe.Pointer, size uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(attr), size); errno != 0 {
		return errno
	}
	return nil
}

// Unload removes the name of a control, which then cannot be chosen any more. Connections that use
// it keep it, and so do network namespaces whose sysctl names it, for new connections too. The
// error matches fs.ErrNotExist if the control is not loaded.
func Unload(dir, name string) error {
	dir = cmp.Or(dir, DefaultDir)
	// The link is last: while it is there, another call ends what a process that was killed has
	// begun. A load that was killed leaves rates without a link.
	if name == Ratio {
		if err := os.Remove(filepath.Join(dir, RatesPin)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	err := os.Remove(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("it is not loaded: %w", fs.ErrNotExist)
	}
	return err
}

// Info describes a control that is loaded.
type Info struct {
	Name    string
	Version Version
	// Current is set if Version is what Load would load with the same options.
	Current bool
	// Repairs counts the windows and thresholds that were contained.
	Repairs uint64
	// Rates are those of the subflows of Ratio; 0 is no limit.
	Rates []unit.Bandwidth
	// Programs are the IDs of the programs.
	Programs []ebpf.ProgramID
}

// List returns the controls that are loaded, in the order of Names.
func List(dir string) ([]Info, error) {
	dir = cmp.Or(dir, DefaultDir)
	var list []Info
	for _, c := range controls {
		p, err := open(filepath.Join(dir, c.name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %q: %w", c.name, err)
		}
		i, err := p.info(c)
		if c.name == Ratio && err == nil {
			if i.Rates, err = Rates(dir); errors.Is(err, fs.ErrNotExist) {
				err = nil // somebody removed the pin
			}
		}
		if err := errors.Join(err, p.Close()); err != nil {
			return nil, fmt.Errorf("read %q: %w", c.name, err)
		}
		list = append(list, i)
	}
	return list, nil
}

// Stats are what a socket of a control counts, at most 10 ms before its last acknowledgment. Times
// are those with data in flight.
type Stats struct {
	Acks uint64
	// Busy is the time, Limited the part in which the congestion window was the limit.
	Busy, Limited time.Duration
	// MeanWindow is the window in segments, averaged over the time; HighestWindow the largest of
	// those every 10 ms and before losses.
	MeanWindow    float64
	HighestWindow uint32
	// Increase is the last increase of the window for a segment acknowledged, in segments.
	Increase float64
	// Losses counts recoveries, Timeouts expiries of the retransmission timer.
	Losses, Timeouts uint32
	// Repairs counts the windows and thresholds that were contained.
	Repairs uint32
}

// DecodeStats decodes what a map named StatsMap has for a socket.
func DecodeStats(b []byte) (Stats, error) {
	if len(b) < int(unsafe.Sizeof(newrenoStats{})) {
		return Stats{}, fmt.Errorf("statistics of %d bytes, want %d", len(b), unsafe.Sizeof(newrenoStats{}))
	}
	var raw newrenoStats
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&raw)), unsafe.Sizeof(raw)), b)
	s := Stats{
		Acks: raw.Acks, Busy: time.Duration(raw.Busy) * time.Microsecond, Limited: time.Duration(raw.Limited) * time.Microsecond,
		HighestWindow: raw.Highest, Increase: float64(raw.Each) / (1 << 32),
		Losses: raw.Losses, Timeouts: raw.Timeouts, Repairs: raw.Repairs,
	}
	if raw.Busy > 0 {
		s.MeanWindow = float64(raw.Window) / float64(raw.Busy)
	}
	return s, nil
}

// MapNames resolves IDs of maps to names, which it remembers.
type MapNames map[uint32]string

// Has reports whether the map has Stats. A map that is gone has none.
func (n MapNames) Has(id uint32) bool {
	name, ok := n[id]
	if !ok {
		if m, err := ebpf.NewMapFromID(ebpf.MapID(id)); err == nil {
			if info, err := m.Info(); err == nil {
				name = info.Name
			}
			m.Close()
		}
		n[id] = name
	}
	return name == StatsMap
}

func (p *pinned) info(c control) (Info, error) {
	i := Info{Name: c.name, Version: p.version}
	i.Current = p.version == c.version(Options{Pace: p.version.Paced(), Lowat: p.version.Lowat()})
	value, err := p.ops.LookupBytes(uint32(0))
	if err != nil {
		return i, fmt.Errorf("read struct_ops: %w", err)
	}
	offsets, err := functions()
	if err != nil {
		return i, err
	}
	maps := map[ebpf.MapID]bool{}
	for _, at := range offsets {
		if at+8 > len(value) {
			return i, fmt.Errorf("struct_ops of %d bytes", len(value))
		}
		id := ebpf.ProgramID(*(*uint64)(unsafe.Pointer(&value[at])))
		if id == 0 {
			continue
		}
		i.Programs = append(i.Programs, id)
		if err := mapsOf(id, maps); err != nil {
			return i, err
		}
	}
	for id := range maps {
		repairs, err := repairsIn(id)
		if err != nil {
			return i, err
		}
		i.Repairs += repairs
	}
	return i, nil
}

// functions returns the offsets of the function pointers in the kernel's struct_ops, where a lookup
// in its map has the IDs of the programs.
func functions() ([]int, error) {
	kernel, err := kernelTypes.Kernel()
	if err != nil {
		return nil, fmt.Errorf("read BTF: %w", err)
	}
	var value, ops *btf.Struct
	if err := errors.Join(kernel.TypeByName("bpf_struct_ops_tcp_congestion_ops", &value), kernel.TypeByName("tcp_congestion_ops", &ops)); err != nil {
		return nil, fmt.Errorf("read BTF: %w", err)
	}
	var offsets []int
	for _, data := range value.Members {
		if data.Name != "data" {
			continue
		}
		for _, m := range ops.Members {
			pointer, ok := btf.As[*btf.Pointer](m.Type)
			if !ok {
				continue
			}
			if _, ok := btf.As[*btf.FuncProto](pointer.Target); ok {
				offsets = append(offsets, int(data.Offset.Bytes()+m.Offset.Bytes()))
			}
		}
	}
	return offsets, nil
}

// mapsOf adds the maps of a program.
func mapsOf(id ebpf.ProgramID, maps map[ebpf.MapID]bool) error {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return fmt.Errorf("open program: %w", err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return fmt.Errorf("read program: %w", err)
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		maps[id] = true
	}
	return nil
}

// repairsIn returns the counter of repairs if the map has it.
func repairsIn(id ebpf.MapID) (uint64, error) {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return 0, fmt.Errorf("open map: %w", err)
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return 0, fmt.Errorf("read map: %w", err)
	}
	if info.Name != newrenoMapTotals {
		return 0, nil
	}
	var c newrenoCounters
	if err := m.Lookup(uint32(0), &c); err != nil {
		return 0, fmt.Errorf("read counters: %w", err)
	}
	return c.Repairs, nil
}
