package setup

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/nft"
	"github.com/tabane/tabane/internal/kernel/statefile"
	"github.com/tabane/tabane/internal/role"
)

// Record are the steps that were done, in a file. Each is written before it is done, so that an
// interrupted setup can be undone.
type Record struct {
	file string
	done []Step
}

// NewRecord returns an empty record. It is an error if the file exists.
func NewRecord(file string) (*Record, error) {
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make record %q: it exists: this host was set up already; tabane gateway invite lets one more site join a VPS, tabane gateway leave undoes the setup", file)
	}
	return &Record{file: file}, nil
}

// ReadRecord reads the record of a host that was set up.
func ReadRecord(file string) (*Record, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read record %q: there is none: this host was not set up by tabane gateway init or join", file)
	}
	if err != nil {
		return nil, fmt.Errorf("read record: %w", err)
	}
	r := &Record{file: file}
	if err := json.Unmarshal(b, &r.done); err != nil {
		return nil, fmt.Errorf("read record %q: %w", file, err)
	}
	for i, s := range r.done {
		if s.File == nil && s.Parameter == nil && s.Rule == nil && s.Daemon == nil {
			return nil, fmt.Errorf("read record %q: step %d is of no known kind", file, i+1)
		}
	}
	return r, nil
}

// Steps returns the steps that were done.
func (r *Record) Steps() []Step { return r.done }

func (r *Record) save() error {
	b, err := json.MarshalIndent(r.done, "", "  ")
	if err != nil {
		return fmt.Errorf("write record %q: %w", r.file, err)
	}
	if err := replaceFile(r.file, append(b, '\n')); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// replaceFile writes a file in place of an earlier one, so that after a crash it has one content or
// the other.
func replaceFile(name string, content []byte) error {
	if err := statefile.Replace(name, statefile.Bytes(content)); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Apply does a step.
func (r *Record) Apply(s Step) error {
	if s.File != nil {
		if _, err := os.Lstat(s.File.Path); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("write file %q: it exists; move it away, or edit it by hand (docs/gateway.md)", s.File.Path)
		}
		s.File.Sum = sum([]byte(s.File.Text))
		_, err := os.Stat(filepath.Dir(r.file))
		s.File.MadeDir = errors.Is(err, fs.ErrNotExist)
	}
	if err := os.MkdirAll(filepath.Dir(r.file), 0o755); err != nil {
		return err
	}
	r.done = append(r.done, s)
	if err := r.save(); err != nil {
		return err
	}
	switch {
	case s.File != nil && s.File.Key:
		key, err := handshake.GenerateKey(rand.Reader)
		if err != nil {
			return err
		}
		return gateway.WriteKey(s.File.Path, key)
	case s.File != nil:
		err := os.WriteFile(s.File.Path, []byte(s.File.Text), 0o644)
		if err != nil { // a part of it would be taken for one that was edited
			_ = os.Remove(s.File.Path)
		}
		return err
	case s.Parameter != nil:
		return netns.Sysctl(s.Parameter.Key, s.Parameter.Value)
	case s.Rule != nil:
		return s.Rule.change(netlink.RuleAdd)
	}
	if err := s.Daemon.start(); err != nil {
		return err
	}
	return r.save() // with the process
}

// Rewrite replaces the content of a file. If a step wrote what it has, the file does not count as
// edited. Owner and mode stay. The record may be nil, of a host that was set up by hand.
func (r *Record) Rewrite(name string, before, after []byte) error {
	info, err := os.Stat(name)
	if err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	if err := replaceFile(name, after); err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	err = os.Chmod(name, info.Mode().Perm())
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		err = errors.Join(err, os.Chown(name, int(s.Uid), int(s.Gid)))
	}
	if err != nil || r == nil {
		return err
	}
	for _, s := range r.done {
		if s.File != nil && s.File.Path == name && s.File.Sum == sum(before) {
			s.File.Sum = sum(after)
		}
	}
	return r.save()
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

func (r *Rule) change(do func(*netlink.Rule) error) error {
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.Family = rulePriority, unix.RT_TABLE_MAIN, unix.AF_INET
	if r.From.Is6() {
		rule.Family = unix.AF_INET6
	}
	rule.Src = netipx.PrefixIPNet(single(r.From))
	rule.Dst = netipx.PrefixIPNet(single(r.To))
	if err := do(rule); err != nil {
		return fmt.Errorf("change rule %q: %w", r.text(), err)
	}
	return nil
}

// UndoAll undoes all steps, the last one first, and returns what could not be undone or is left:
// such steps stay in the record unless they leave a file that was edited.
func (r *Record) UndoAll(ctx context.Context) (kept []string, err error) {
	var failed []Step
	madeDir := slices.ContainsFunc(r.done, func(s Step) bool { return s.File != nil && s.File.MadeDir })
	for i := len(r.done) - 1; i >= 0; i-- {
		s := r.done[i]
		left, e := s.undo(ctx)
		if left != "" {
			kept = append(kept, left)
		}
		if e != nil {
			err = errors.Join(err, e)
			failed = append([]Step{s}, failed...)
		}
	}
	if r.done = failed; err != nil {
		return kept, errors.Join(err, r.save())
	}
	if err := os.Remove(r.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return kept, fmt.Errorf("remove record: %w", err)
	}
	if madeDir {
		_ = os.Remove(filepath.Dir(r.file)) // unless something is left in it
	}
	return kept, nil
}

func (s Step) undo(ctx context.Context) (left string, err error) {
	switch {
	case s.File != nil:
		b, err := os.ReadFile(s.File.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "", nil
		case err != nil:
			return "", fmt.Errorf("remove file: %w", err)
		case !s.File.Key && sum(b) != s.File.Sum:
			left = s.File.Path + ".old"
			return left, os.Rename(s.File.Path, left)
		}
		return "", os.Remove(s.File.Path)
	case s.Parameter != nil:
		if now, err := netns.ReadSysctl(s.Parameter.Key); errors.Is(err, fs.ErrNotExist) || err == nil && now != s.Parameter.Value {
			return "", nil // the interface is gone, or somebody else has set it since
		}
		return "", netns.Sysctl(s.Parameter.Key, s.Parameter.Before)
	case s.Rule != nil:
		if err := s.Rule.change(netlink.RuleDel); !errors.Is(err, syscall.ENOENT) {
			return "", err
		}
		return "", nil
	}
	return "", s.Daemon.stop(ctx)
}

// start starts the daemon, which goes on when this process ends.
func (d *Daemon) start() error {
	if d.Unit {
		begun := time.Now()
		err := systemctl("enable", "--now", unitName)
		if last := lastMessage(begun); err != nil && last != "" {
			err = fmt.Errorf("start %s: its last message: %s", unitName, last)
		}
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start gateway: %w", err)
	}
	log, err := os.OpenFile(d.log(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("start gateway: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(program, "gateway", "-c", d.File)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start gateway: %w", err)
	}
	d.PID = cmd.Process.Pid
	go func() { _ = cmd.Wait() }() // its log says why it ended
	return nil
}

// lastMessage returns the last message of the unit's daemon since a time, "" without one: systemctl
// says only where to look for the reason why it did not start.
func lastMessage(since time.Time) string {
	out, _ := exec.Command("journalctl", "--unit", unitName, "--identifier", "tabane", "--since", "@"+strconv.FormatInt(since.Unix(), 10),
		"--lines", "1", "--output", "cat", "--quiet", "--no-pager").Output()
	return strings.TrimSpace(string(out))
}

// log is the file of a daemon's messages without a service manager.
func (d *Daemon) log() string { return strings.TrimSuffix(d.File, ".yaml") + ".log" }

// Where says where the daemon's messages are.
func (d *Daemon) Where() string {
	if d.Unit {
		return "journalctl -u " + unitName
	}
	return d.log()
}

// Running reports whether the process of the daemon exists: not another one with its number.
func (d *Daemon) Running() bool { return d.process() != 0 }

// process returns the number of the daemon's process, 0 without one. The record lacks it if the
// setup was killed just after the start: then all processes are searched for the one with the file,
// but for those of other network namespaces. A daemon may be in another one for a moment itself, to
// try what the kernel can do, so one whose number is known is not judged by it.
func (d *Daemon) process() int {
	list, own := []string{strconv.Itoa(d.PID)}, ""
	if d.PID == 0 {
		list, _ = filepath.Glob("/proc/[0-9]*")
		own, _ = os.Readlink("/proc/thread-self/ns/net")
	}
	for _, name := range list {
		name = filepath.Base(name)
		if other, err := os.Readlink(filepath.Join("/proc", name, "ns/net")); err == nil && own != "" && other != own {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", name, "cmdline"))
		if err == nil && strings.Contains(string(b), "\x00gateway\x00-c\x00"+d.File+"\x00") {
			pid, _ := strconv.Atoi(name) // the name is a number
			return pid
		}
	}
	return 0
}

// stopLimit is how long a daemon may take to stop.
const stopLimit = 30 * time.Second

func (d *Daemon) stop(ctx context.Context) error {
	if d.Unit {
		return errors.Join(systemctl("disable", "--now", unitName), removeLeft())
	}
	if pid := d.process(); pid != 0 {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop process %d: %w", pid, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	for d.Running() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("stop process %d: %w", d.PID, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
	// A daemon that was killed leaves its socket.
	socket := control.Path(Files{Dir: filepath.Dir(d.File)}.Control(), role.Gateway)
	for _, file := range []string{d.log(), socket} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove file of gateway: %w", err)
		}
	}
	return removeLeft()
}

// RulesOwner begins the comments of rules that a setup inserts into firewalls for a while, and
// RedirectTable is a table of nftables that it makes for a while.
const RulesOwner, RedirectTable = "tabane-setup", "tabane-setup"

// exitLimit is how long a process that was killed may take to release its lock: the kernel closes its
// files after it has forgotten its command line.
const exitLimit = 2 * time.Second

// removeLeft removes what a daemon or a setup which was killed has left in the kernel. What another
// gateway has there, which was started since, is not touched.
func removeLeft() error {
	_, err := nft.Permit(RulesOwner, nil)
	left := gateway.RemoveLeft(slog.New(slog.DiscardHandler))
	for end := time.Now().Add(exitLimit); errors.Is(left, gateway.ErrRunning) && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		left = gateway.RemoveLeft(slog.New(slog.DiscardHandler))
	}
	if errors.Is(left, gateway.ErrRunning) {
		left = nil
	}
	return errors.Join(err, nft.Delete(RedirectTable), left)
}

func systemctl(arguments ...string) error {
	if out, err := exec.Command("systemctl", arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(arguments, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
