package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestRefusal(t *testing.T) {
	pointers := &ebpf.VerifierError{Cause: unix.EACCES, Log: []string{
		"0: R1=ctx() R10=fp0", "R3 has pointer with unsupported alu operation, pointer arithmetic with it prohibited for !root", "processed 55 insns",
	}}
	for _, tt := range []struct {
		err  error
		want string // empty: returned as it is
	}{
		{pointers, "lacks CAP_PERFMON"},
		{&ebpf.VerifierError{Cause: unix.EINVAL, Log: []string{"unknown func bpf_new#999", "processed 3 insns"}}, "unknown func bpf_new#999; use Linux 9.9"},
		{&ebpf.VerifierError{Cause: unix.EINVAL}, "the verifier rejects the program: invalid argument"},
		{fmt.Errorf("map create: %w (MEMLOCK may be too low)", unix.EPERM), "this process may not load programs: operation not permitted; run as root"},
		{unix.ENOSYS, "CONFIG_BPF_SYSCALL"},
		{ebpf.ErrNotSupported, "too old"},
		{unix.EMFILE, ""},
	} {
		err := refusal(tt.err, "use Linux 9.9")
		if missing := errors.Is(err, errors.ErrUnsupported); missing != (tt.want != "") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("refusal(%v) = %v, want %q", tt.err, err, tt.want)
		}
	}
	if err := refusal(fmt.Errorf("map create: %w", unix.EPERM), ""); !errors.Is(err, unix.EPERM) {
		t.Errorf("the kernel's answer is lost: %v", err)
	}
	if err := refusal(nil, ""); err != nil {
		t.Errorf("refusal(nil) = %v", err)
	}
}

// TestKeepsTags: of interfaces, only VLANs with reorder_hdr off keep tags in frames.
func TestKeepsTags(t *testing.T) {
	on, off := true, false
	for _, tt := range []struct {
		link netlink.Link
		want bool
	}{{&netlink.Veth{}, false}, {&netlink.Vlan{}, false}, {&netlink.Vlan{ReorderHdr: &on}, false}, {&netlink.Vlan{ReorderHdr: &off}, true}} {
		if got := keepsTags(tt.link); got != tt.want {
			t.Errorf("%+v: %v", tt.link, got)
		}
	}
}

func TestAttachWithoutLink(t *testing.T) {
	_, err := Attach(AttachOptions{Link: "tabane-no-link"})
	if !errors.Is(err, fs.ErrNotExist) || err.Error() != "no such interface" {
		t.Errorf("got %v", err)
	}
}
