// Package protocol has the kernel open MPTCP sockets in place of the TCP sockets of the programs of
// a control group, by a program that changes what update_socket_protocol returns. The program is in
// bpf/mptcp/protocol.
//
// It neither makes control groups nor puts programs into them.
package protocol

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/kernel/bpf"
)

// objects are the program and its map.
type objects struct {
	Update *ebpf.Program `ebpf:"update"`
	Group  *ebpf.Map     `ebpf:"group"`
}

// load loads the program. It returns a *feature.Error if the kernel refuses it.
func load() (*objects, error) {
	spec, err := loadProgram()
	if err != nil {
		return nil, err
	}
	o := &objects{}
	if err := bpf.Load(spec, o); err != nil {
		return nil, refused(err)
	}
	return o, nil
}

// refused returns the *feature.Error of what the kernel refuses, and that of loading a program
// where this process lacks a privilege or the kernel has no eBPF.
func refused(err error) error {
	var lacking *feature.Error
	switch {
	case errors.Is(err, unix.EPERM):
		err = unix.EPERM
	case errors.Is(err, unix.EACCES):
		err = unix.EACCES
	case errors.As(err, &lacking):
		return lacking
	}
	return &feature.Error{
		Feature: "eBPF", Reason: "the kernel refuses a program that changes what update_socket_protocol returns (fmod_ret)", Err: err,
		Remedy: "use --how seccomp",
	}
}

func (o *objects) close() error { return errors.Join(o.Update.Close(), o.Group.Close()) }

// Supported loads the program and returns a *feature.Error if the kernel refuses it.
func Supported() error {
	o, err := load()
	if err != nil {
		return err
	}
	return o.close()
}

// Attach attaches the program for the control group whose directory is open, and those below it. It
// lasts while the returned file is open, in any process. Attach returns a *feature.Error if the
// kernel refuses the program.
func Attach(group *os.File) (_ *os.File, err error) {
	o, err := load()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	if err := o.Group.Put(uint32(0), uint32(group.Fd())); err != nil {
		return nil, fmt.Errorf("set control group %q: %w", group.Name(), err)
	}
	l, err := link.AttachTracing(link.TracingOptions{Program: o.Update, AttachType: ebpf.AttachModifyReturn})
	if err != nil {
		return nil, refused(err)
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	holder, ok := l.(interface{ FD() int })
	if !ok {
		panic("BUG: a link without a file")
	}
	fd, err := unix.FcntlInt(uintptr(holder.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate the link of a program: %w", err)
	}
	return os.NewFile(uintptr(fd), "link"), nil
}
