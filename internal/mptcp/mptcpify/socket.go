package mptcpify

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/seccomp"
)

// opener opens MPTCP sockets for other processes: in their network namespace and, if this process
// is root, with their user and group IDs, so that rules of firewalls and of routing by user match.
// It is used by one thread.
type opener struct {
	home      unix.Stat_t // the network namespace of this process
	namespace int         // an open file of it
	root      bool
	group     uint32 // of this process
	status    [4096]byte
}

func newOpener() (*opener, error) {
	o := &opener{root: os.Geteuid() == 0, group: uint32(os.Getegid())}
	if err := unix.Stat(threadNamespace, &o.home); err != nil {
		return nil, fmt.Errorf("read network namespace: %w", err)
	}
	fd, err := unix.Open(threadNamespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	o.namespace = fd
	return o, nil
}

const threadNamespace = "/proc/thread-self/ns/net"

// open opens the socket that a thread has asked for, over MPTCP. An error means that the kernel
// should open the one asked for.
func (o *opener) open(n seccomp.Notification) (fd int, err error) {
	if n.Thread <= 0 {
		return 0, errors.New("the caller is in another PID namespace")
	}
	proc := "/proc/" + strconv.Itoa(n.Thread)
	var namespace unix.Stat_t
	if err := unix.Stat(proc+"/ns/net", &namespace); err != nil {
		return 0, fmt.Errorf("read network namespace of the caller: %w", err)
	}
	if namespace.Dev != o.home.Dev || namespace.Ino != o.home.Ino {
		leave, err := o.enter(proc + "/ns/net")
		if err != nil {
			return 0, err
		}
		defer leave()
	}
	if o.root {
		user, group, err := o.credentials(proc + "/status")
		if err != nil {
			return 0, err
		}
		if user != 0 || group != o.group {
			defer become(0, o.group)
			become(user, group)
		}
	}
	fd, err = unix.Socket(int(int32(n.Args[0])), int(int32(n.Args[1]))|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
	if err != nil {
		return 0, fmt.Errorf("open mptcp socket: %w", err)
	}
	if congestion != "" {
		// It existed when the program was started. If it has been unloaded since, MPTCP without it
		// is better than none.
		_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion)
	}
	return fd, nil
}

// become changes the file system IDs of the thread, which are those of the files that it opens.
func become(user, group uint32) {
	// They have no error; a change that is not permitted has no effect.
	_ = unix.Setfsgid(int(group))
	_ = unix.Setfsuid(int(user))
}

// enter moves the thread to another network namespace, and the function that it returns moves it
// back.
func (o *opener) enter(path string) (leave func(), err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open network namespace of the caller: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("enter network namespace of the caller: %w", err)
	}
	return func() {
		if err := unix.Setns(o.namespace, unix.CLONE_NEWNET); err != nil {
			// No socket may be opened in the wrong namespace: the spare is used instead.
			os.Exit(1)
		}
	}, nil
}

// credentials reads the file system IDs of a thread (proc_pid_status(5)).
func (o *opener) credentials(path string) (user, group uint32, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("read credentials of the caller: %w", err)
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, o.status[:])
	if err != nil {
		return 0, 0, fmt.Errorf("read credentials of the caller: %w", err)
	}
	return parseCredentials(o.status[:n])
}

// parseCredentials returns the file system IDs, which are the fourth numbers of the lines Uid and
// Gid.
func parseCredentials(status []byte) (user, group uint32, err error) {
	if user, err = fourth(status, "\nUid:"); err != nil {
		return 0, 0, err
	}
	if group, err = fourth(status, "\nGid:"); err != nil {
		return 0, 0, err
	}
	return user, group, nil
}

func fourth(status []byte, key string) (uint32, error) {
	_, rest, found := bytes.Cut(status, []byte(key))
	line, _, ended := bytes.Cut(rest, []byte("\n"))
	fields := bytes.Fields(line)
	if !found || !ended || len(fields) != 4 {
		return 0, fmt.Errorf("read credentials of the caller: no line %q with four numbers", key[1:])
	}
	id, err := strconv.ParseUint(string(fields[3]), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("read credentials of the caller: %w", err)
	}
	return uint32(id), nil
}
