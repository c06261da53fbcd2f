package mptcpify

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/seccomp"
)

// processName is the name of the processes in the list of processes.
const processName = "tabane: mptcpify"

// The roles of the processes; each is the first argument of its process. The second is the process
// ID of the program, or of keepers the directory of its control group.
const (
	// starterRole starts the supervisor and exits, so that the supervisor is no child of the
	// program.
	starterRole = "starter"
	// supervisorRole answers the program's system calls.
	supervisorRole = "supervisor"
	// spareRole waits until the supervisor dies and becomes the supervisor.
	spareRole = "spare"
	// keeperStarterRole starts the keeper and exits, keeperRole keeps an eBPF program attached.
	keeperStarterRole, keeperRole = "keeper-starter", "keeper"
)

// Names of the processes (proc_pid_comm(5)). That of a spare changes when it becomes the
// supervisor, its arguments do not.
const (
	supervisorName = "mptcpify"
	spareName      = "mptcpify-spare"
	keeperName     = "mptcpify-keeper"
)

// rename gives the process its name. Without, its work is the same.
func rename(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

// Files that the processes inherit. All have the listener, so that it is never closed while one of
// them lives: the program's system calls wait for the next supervisor instead of failing.
const (
	listenerFD = 3 + iota
	recordFD
	// lifelineFD ends with the supervisor; only a spare has it.
	lifelineFD
)

// ready is what the supervisor writes to its standard output when it and its spare are there.
// Anything else is the error.
const ready = "ready"

// congestion is the congestion control of the sockets, empty for that of their network namespace.
// The processes have it from each other by the environment variable.
var congestion string

const congestionVariable = "CONGESTION"

// spareRestartPause is the shortest time between the starts of two spares of a supervisor.
const spareRestartPause = 200 * time.Millisecond

// Process runs the supervisor, and does not return, if this process was started by Exec or by a
// supervisor; otherwise it does nothing. A program that uses Exec calls it first.
func Process() {
	prepared = true
	if len(os.Args) != 3 || os.Args[0] != processName {
		return
	}
	role, program := os.Args[1], os.Args[2]
	congestion = os.Getenv(congestionVariable)
	// They are for the program: a service manager sends them to all processes of a service, and the
	// program may still open sockets until it ends. The processes end after it.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	var err error
	switch role {
	case starterRole:
		err = startSupervisor(program)
	case supervisorRole:
		err = supervise(program)
	case spareRole:
		err = standBy(program)
	case keeperStarterRole:
		err = startKeeper(program)
	case keeperRole:
		err = keep(program)
	default:
		err = fmt.Errorf("unknown role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stdout, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// prepared: this program has called Process. Without it, a process would run the program again.
var prepared bool

// startSupervisor starts the supervisor in a session of its own, without the program's terminal,
// directory and files.
func startSupervisor(program string) error {
	fd, err := createRecord()
	if err != nil {
		return err
	}
	return detach(supervisorRole, program, os.NewFile(listenerFD, "listener"), os.NewFile(uintptr(fd), "record"))
}

// startKeeper starts a keeper as startSupervisor starts a supervisor.
func startKeeper(group string) error {
	return detach(keeperRole, group, os.NewFile(listenerFD, "link"))
}

// detach starts a process in a session of its own that inherits files.
func detach(role, program string, files ...*os.File) error {
	// The program's files are for the program: a pipe of it would not end while another process has
	// it.
	if err := unix.CloseRange(listenerFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close files: %w", err)
	}
	cmd := process(role, program)
	cmd.Stdout = os.Stdout
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

// process returns the command of a process with the role.
func process(role, program string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", role, program)
	cmd.Args[0] = processName
	cmd.Dir = "/"
	cmd.Env = []string{congestionVariable + "=" + congestion} // alone
	return cmd
}

// supervise answers the program's system calls.
func supervise(program string) error {
	s, err := newSupervisor(program)
	if err != nil {
		return err
	}
	return s.run()
}

// standBy waits until the supervisor dies and becomes the supervisor.
func standBy(program string) error {
	rename(spareName)
	// Whatever can fail does so before the supervisor dies.
	s, err := newSupervisor(program)
	if err != nil {
		return err
	}
	lifeline := os.NewFile(lifelineFD, "lifeline")
	if _, err := lifeline.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("wait for the supervisor: %w", err)
	}
	_ = lifeline.Close()
	return s.run()
}

// supervisor answers the system calls of one program and its children. It is used by one thread.
type supervisor struct {
	listener *seccomp.Listener
	record   record
	opener   *opener
	program  string
	// lifeline is the end that this process has of its spare's.
	lifeline *os.File
}

// newSupervisor returns a supervisor for the files that this process has inherited.
func newSupervisor(program string) (*supervisor, error) {
	// The IDs and the network namespace that the opener changes are those of the thread.
	runtime.LockOSThread()
	unix.CloseOnExec(listenerFD)
	unix.CloseOnExec(recordFD)
	r, err := openRecord(recordFD)
	if err != nil {
		return nil, err
	}
	o, err := newOpener()
	if err != nil {
		return nil, err
	}
	return &supervisor{listener: seccomp.FromFD(listenerFD), record: r, opener: o, program: program}, nil
}

// run starts a spare, reports ready and answers system calls until no process has the filter any
// more.
func (s *supervisor) run() error {
	rename(supervisorName)
	if unused, err := s.listener.Unused(0); unused || err != nil {
		return err // the previous supervisor ended because its work was done
	}
	go s.keepSpare(s.startSpare())
	go s.exitUnused()
	// The last use of the standard output, which Exec reads to its end.
	fmt.Print(ready)
	_ = unix.Dup3(0, 1, 0)
	s.answer(s.record.load()) // what the previous supervisor has left
	for {
		s.record.clear()
		switch err := s.listener.Receive(s.record.notification()); {
		case err == nil:
			s.answer(s.record.load())
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR): // the caller is dead, or there is none
			if unused, _ := s.listener.Unused(0); unused {
				return nil
			}
		default:
			time.Sleep(spareRestartPause)
		}
	}
}

// exitUnused ends this process when no process has the filter. Before Linux 6.6 Receive does not
// notice it.
func (s *supervisor) exitUnused() {
	if unused, _ := s.listener.Unused(-1); unused {
		os.Exit(0)
	}
}

// startSpare starts a spare, which takes over even if this process dies before the spare runs. It
// returns nil if that fails.
func (s *supervisor) startSpare() *exec.Cmd {
	if s.lifeline != nil {
		_ = s.lifeline.Close()
	}
	theirs, own, err := os.Pipe()
	if err != nil {
		return nil
	}
	defer theirs.Close()
	s.lifeline = own
	listener, err := s.listener.File()
	if err != nil {
		return nil
	}
	defer listener.Close()
	cmd := process(spareRole, s.program)
	cmd.ExtraFiles = []*os.File{listener, s.record.file, theirs}
	if err := cmd.Start(); err != nil {
		return nil
	}
	return cmd
}

// keepSpare starts another spare whenever one ends or cannot be started.
func (s *supervisor) keepSpare(spare *exec.Cmd) {
	for {
		started := time.Now()
		if spare != nil {
			_ = spare.Wait() // however it ended
		}
		time.Sleep(spareRestartPause - time.Since(started))
		spare = s.startSpare()
	}
}

// answer answers a system call, if the record has one: with an MPTCP socket, or on any doubt by
// having the kernel open the socket as if there were no filter. A call that the previous supervisor
// has answered, or whose caller is dead, does not mind.
func (s *supervisor) answer(n seccomp.Notification, err error) {
	if err != nil {
		return
	}
	number, err := s.install(n)
	if err != nil {
		_ = s.listener.Continue(n.ID)
		return
	}
	_ = s.listener.Return(n.ID, number)
}

// install opens a socket, gives it to the caller, and returns its number there.
//
// Installing it and answering in one step, as SECCOMP_ADDFD_FLAG_SEND does, would not be safe: when
// the supervisor is killed before the caller has woken up, the caller gets no file but the answer, 0.
func (s *supervisor) install(n seccomp.Notification) (int, error) {
	if number, ok := installed(n.Thread, s.record.socket()); ok {
		return number, nil
	}
	fd, err := s.opener.open(n)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return 0, err
	}
	s.record.setSocket(stat.Ino)
	return s.listener.AddFD(n.ID, fd, n.Args[1]&unix.SOCK_CLOEXEC != 0)
}

// installed looks for a socket, by its inode, among the files of a thread and returns its number.
// The previous supervisor may have installed it and not answered the call.
func installed(thread int, inode uint64) (number int, ok bool) {
	if inode == 0 {
		return 0, false
	}
	dir := fmt.Sprintf("/proc/%d/fd", thread)
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0, false
	}
	name := fmt.Sprintf("socket:[%d]", inode)
	for _, f := range files {
		if target, err := os.Readlink(dir + "/" + f.Name()); err == nil && target == name {
			number, err := strconv.Atoi(f.Name())
			return number, err == nil
		}
	}
	return 0, false
}

// record is memory of the supervisor and its spare: what the supervisor is doing. The kernel itself
// writes the notification, so that the record has it whenever the supervisor is killed.
type record struct {
	file   *os.File
	memory []byte
}

// socketOffset is where the record has the inode of the socket that answers the notification.
const socketOffset = 128

func createRecord() (fd int, err error) {
	fd, err = unix.MemfdCreate("mptcpify", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, int64(os.Getpagesize()))
	}
	if err != nil {
		return -1, fmt.Errorf("create record: %w", err)
	}
	return fd, nil
}

func openRecord(fd int) (record, error) {
	m, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return record{}, fmt.Errorf("map record: %w", err)
	}
	return record{os.NewFile(uintptr(fd), "record"), m}, nil
}

func (r record) notification() []byte { return r.memory[:seccomp.SizeNotification] }

func (r record) load() (seccomp.Notification, error) { return seccomp.Decode(r.notification()) }

func (r record) clear() { clear(r.memory[:socketOffset+8]) }

func (r record) socket() uint64 { return binary.NativeEndian.Uint64(r.memory[socketOffset:]) }

func (r record) setSocket(inode uint64) {
	binary.NativeEndian.PutUint64(r.memory[socketOffset:], inode)
}
