package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// group2 opens a control group of version 2, with this process in it or not.
func group2(t *testing.T, own bool) *os.File {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if err := unix.Statfs(root, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		if !own {
			dir, err := os.MkdirTemp(root, "tabane-test-")
			if err != nil {
				t.Skip(err)
			}
			t.Cleanup(func() {
				if err := unix.Rmdir(dir); err != nil {
					t.Error(err)
				}
			})
			root = dir
		}
		f, err := os.Open(filepath.Clean(root))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	t.Skip("no control groups of version 2")
	return nil
}

// TestProtocolOf runs what the program decides in the kernel.
func TestProtocolOf(t *testing.T) {
	netnstest.Need(t)
	spec, err := loadProgram()
	if err != nil {
		t.Fatal(err)
	}
	var o struct {
		Try   *ebpf.Program `ebpf:"try"`
		Group *ebpf.Map     `ebpf:"group"`
	}
	if err := bpf.Load(spec, &o); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer o.Try.Close()
	defer o.Group.Close()
	const udp = unix.IPPROTO_UDP
	for _, tt := range []struct {
		own                    bool
		family, kind, protocol uint32
		want                   uint32
	}{
		{true, unix.AF_INET, unix.SOCK_STREAM, 0, unix.IPPROTO_MPTCP},
		{true, unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP, unix.IPPROTO_MPTCP},
		{true, unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_SCTP, unix.IPPROTO_SCTP},
		{true, unix.AF_INET, unix.SOCK_DGRAM, udp, udp},
		{true, unix.AF_INET, unix.SOCK_DGRAM, 0, 0},
		{true, unix.AF_UNIX, unix.SOCK_STREAM, 0, 0},
		{false, unix.AF_INET, unix.SOCK_STREAM, 0, 0},
		{false, unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP, unix.IPPROTO_TCP},
	} {
		if err := o.Group.Put(uint32(0), uint32(group2(t, tt.own).Fd())); err != nil {
			t.Fatal(err)
		}
		var vector bytes.Buffer
		if err := binary.Write(&vector, binary.NativeEndian, []uint64{uint64(tt.family), uint64(tt.kind), uint64(tt.protocol)}); err != nil {
			t.Fatal(err)
		}
		if got, err := o.Try.Run(&ebpf.RunOptions{Context: vector.Bytes()}); err != nil || got != tt.want {
			t.Errorf("%+v: got %d, %v", tt, got, err)
		}
	}
}

// TestAttach: where the kernel lets programs change what functions return, sockets of the group are
// those of MPTCP while the file is open. Elsewhere the error says that the kernel refuses it.
func TestAttach(t *testing.T) {
	netnstest.Need(t)
	group := group2(t, true)
	opened := func() int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
		if err != nil {
			t.Fatal(err)
		}
		return protocol
	}
	link, err := Attach(group)
	var missing *feature.Error
	if supported := Supported(); errors.As(supported, &missing) {
		if !errors.As(err, &missing) || missing.Err == nil {
			t.Errorf("supported: %v, attached: %v", supported, err)
		}
		// As root, who may load programs, "run as root" is no remedy.
		if strings.Contains(supported.Error(), "this process") || missing.Remedy != "use --how seccomp" {
			t.Errorf("supported: %v", supported)
		}
		return
	} else if err = errors.Join(err, supported); err != nil {
		t.Fatal(err)
	}
	if p := opened(); p != unix.IPPROTO_MPTCP {
		t.Errorf("protocol %d", p)
	}
	if err := link.Close(); err != nil {
		t.Fatal(err)
	}
	if p := opened(); p != unix.IPPROTO_TCP {
		t.Errorf("protocol %d after the end", p)
	}
}
