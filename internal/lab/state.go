package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/netns"
)

const (
	stateFile = "state.json"
	specFile  = "scenario.json"
	hostsName = "hosts"
	lockFile  = "lock"
)

// root is the directory of this machine's labs, with a subdirectory for each. Tests use another
// one.
var root = "/run/tabane/lab"

// state has all that is needed to remove a lab, by any process at any time: a namespace is recorded
// before it is created, a process as soon as it runs.
type state struct {
	Scenario string    `json:"scenario"`
	Since    time.Time `json:"since"`
	// Boot is the kernel's boot ID. Processes of another boot are gone.
	Boot string `json:"boot"`
	// Owner is the process that made the lab. Unless Detached, the lab ends with it.
	Owner    process `json:"owner"`
	Detached bool    `json:"detached"`
	// Built is whether everything was made and started, Ready whether it then became ready.
	Built bool `json:"built"`
	Ready bool `json:"ready"`
	// User is as in Info.
	User int `json:"user"`
	// Routers is the implementation of the routers and reflectors.
	Routers    string    `json:"routers,omitempty"`
	Nodes      []string  `json:"nodes"`
	Namespaces []string  `json:"namespaces"`
	Processes  []process `json:"processes,omitempty"`
	// Interposed lists the wires that have become emulated since the lab was made.
	Interposed []string `json:"interposed,omitempty"`
}

// process identifies a process of this boot. The PID alone may be reused.
type process struct {
	PID int `json:"pid"`
	// Start is the kernel's start time in clock ticks since boot, field 22 of /proc/PID/stat.
	Start uint64 `json:"start"`
	Node  string `json:"node,omitempty"`
	Role  string `json:"role,omitempty"`
}

// dirOf returns a lab's directory.
func dirOf(name string) string { return filepath.Join(root, name) }

// readState reads the state file of a lab. If there is none, because its process died early, the
// error matches fs.ErrNotExist.
func readState(name string) (*state, error) {
	b, err := os.ReadFile(filepath.Join(dirOf(name), stateFile))
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("read state of lab %q: %w", name, err)
	}
	for _, ns := range s.Namespaces {
		if !strings.HasPrefix(ns, prefix) || strings.Contains(ns, "/") {
			return nil, fmt.Errorf("read state of lab %q: namespace %q is not a lab's", name, ns)
		}
	}
	return &s, nil
}

func (s *state) write(name string) error {
	b, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return fmt.Errorf("BUG: encode state of lab %q: %w", name, err)
	}
	return writeFile(filepath.Join(dirOf(name), stateFile), append(b, '\n'))
}

// merge copies what other processes may have added to the recorded state.
func (s *state) merge(recorded *state) {
	s.Namespaces, s.Interposed = slices.Clone(recorded.Namespaces), slices.Clone(recorded.Interposed)
	s.Processes = slices.Clone(recorded.Processes)
}

// emulators returns the running processes of emulated links that are not in except.
func (s *state) emulators(except []*child) []process {
	ours := map[int]bool{}
	for _, c := range except {
		ours[c.PID] = true
	}
	return slices.DeleteFunc(slices.Clone(s.Processes), func(p process) bool { return p.Role != RoleLink || ours[p.PID] || !p.alive() })
}

// writeFile replaces a file atomically: a reader sees the old or the new content, even after a
// crash.
func writeFile(path string, b []byte) error {
	return renameio.WriteFile(path, b, 0o600, renameio.WithTempDir(filepath.Dir(path)))
}

// writeSpec and readSpec store the scenario for processes that open the lab later, in a private
// format that is not that of scenario files.
func writeSpec(name string, spec *scenario.Spec) error {
	b, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode scenario %q: %w", spec.Name, err)
	}
	return writeFile(filepath.Join(dirOf(name), specFile), b)
}

func readSpec(name string) (*scenario.Spec, error) {
	b, err := os.ReadFile(filepath.Join(dirOf(name), specFile))
	if err != nil {
		return nil, err
	}
	var s scenario.Spec
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("read scenario of lab %q: %w", name, err)
	}
	return &s, nil
}

// condition returns the condition of a lab. A lab that is being built or is not detached lives as
// long as its owner; a detached lab lives as long as any part of it.
func (s *state) condition() Condition {
	switch boot, err := bootID(); {
	case err != nil:
		return Partial // nothing is removed while the boot ID is unknown
	case s.Boot != boot:
		return Stale
	}
	existing, err := netns.List(prefix)
	if err != nil {
		return Partial
	}
	parts, there, running := len(s.Namespaces)+len(s.Processes), 0, 0
	for _, ns := range s.Namespaces {
		if slices.Contains(existing, ns) {
			there++
		}
	}
	for _, p := range s.Processes {
		if p.alive() {
			running++
		}
	}
	there += running
	switch owned := !s.Detached || !s.Built; {
	case owned && !s.Owner.alive():
		return Stale
	case !owned && (there == 0 || len(s.Processes) > 0 && running == 0):
		return Stale
	case !s.Built || there < parts:
		return Partial
	case !s.Ready:
		return NotReady
	}
	return Running
}

// lock waits for exclusive access to build or remove the lab; the returned function releases it. If
// create is set, the lab's directory is created when missing; otherwise a missing directory is an
// error that matches fs.ErrNotExist.
func lock(ctx context.Context, name string, create bool) (unlock func(), err error) {
	dir := dirOf(name)
	for {
		if create {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return nil, err
			}
		}
		f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			if create && errors.Is(err, fs.ErrNotExist) {
				continue // removed by a concurrent Down
			}
			return nil, err
		}
		if err := flock(ctx, f); err != nil {
			f.Close()
			return nil, fmt.Errorf("wait for another process that builds or removes lab %q: %w", name, err)
		}
		// If the previous holder removed the directory, this file is no longer the lab's
		// lock.
		if now, err := os.Stat(f.Name()); err == nil {
			if mine, err := f.Stat(); err == nil && os.SameFile(now, mine) {
				return func() { f.Close() }, nil
			}
		}
		f.Close()
	}
}

// flock polls, because a blocking flock cannot be canceled.
func flock(ctx context.Context, f *os.File) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// claim writes the state of a new lab and so reserves its namespaces, unless another lab has one of
// them: lab "a-b" with node "c" and lab "a" with node "b-c" have the same namespace name.
func claim(ctx context.Context, name string, s *state) error {
	all, err := os.Open(root)
	if err != nil {
		return err
	}
	defer all.Close()
	if err := flock(ctx, all); err != nil {
		return fmt.Errorf("wait for another lab to start: %w", err)
	}
	existing, err := netns.List(prefix)
	if err != nil {
		return err
	}
	names, err := labNames()
	if err != nil {
		return err
	}
	for _, other := range names {
		if other == name {
			continue
		}
		o, err := readState(other)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, ns := range s.Namespaces {
			if slices.Contains(o.Namespaces, ns) {
				return fmt.Errorf("namespace %q belongs to lab %q: choose another name", ns, other)
			}
		}
	}
	for _, ns := range s.Namespaces {
		if slices.Contains(existing, ns) {
			return fmt.Errorf("namespace %q exists and belongs to no lab: remove it with `ip netns del %s`", ns, ns)
		}
	}
	return s.write(name)
}

// labNames returns the names of all labs with a directory, sorted.
func labNames() ([]string, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && CheckName(e.Name()) == nil {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// self returns the calling process.
func self() (process, error) {
	st, err := procStat(os.Getpid())
	return process{PID: os.Getpid(), Start: st.start}, err
}

// alive reports whether the process is running; a zombie is not. A process whose state cannot be
// read counts as alive unless it does not exist.
func (p process) alive() bool {
	st, err := procStat(p.PID)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH)
	}
	return st.start == p.Start && !st.ended()
}

// stat is the state of a process in /proc/PID/stat.
type stat struct {
	// start is the start time in clock ticks since boot, state the state's letter, threads the
	// number of threads.
	start   uint64
	state   byte
	threads int
}

// ended reports whether the process is a zombie. The first thread of a process may exit alone, as
// it does while another thread calls exec in Enter.
func (s stat) ended() bool { return (s.state == 'Z' || s.state == 'X') && s.threads <= 1 }

// procStat reads a process's start time, state and threads (proc_pid_stat(5), fields 22, 3 and 20).
func procStat(pid int) (stat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	s, err := parseStat(b)
	if err != nil {
		return stat{}, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
	}
	return s, nil
}

func parseStat(b []byte) (s stat, err error) {
	// The second field is the command's name in parentheses and may contain anything.
	i := bytes.LastIndexByte(b, ')')
	fields := bytes.Fields(b[i+1:])
	if i < 0 || len(fields) < 20 || len(fields[0]) != 1 {
		return stat{}, errors.New("not understood")
	}
	if s.start, err = strconv.ParseUint(string(fields[19]), 10, 64); err != nil {
		return stat{}, err
	}
	if s.threads, err = strconv.Atoi(string(fields[17])); err != nil {
		return stat{}, err
	}
	s.state = fields[0][0]
	return s, nil
}

// bootID returns the ID of the kernel's current boot.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the kernel's boot id: %w", err)
	}
	return string(bytes.TrimSpace(b)), nil
}

// signal sends sig to exactly this process: a pidfd is not affected by reuse of the PID. A process
// that has exited is no error.
func (p process) signal(sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("send %s to process %d: %w", sig, p.PID, err)
	}
	return nil
}
