package mptcp

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSignals: a kernel that this package runs on has the fields that it decodes, and one that
// reports less is named with what it lacks.
func TestSignals(t *testing.T) {
	if Supported() != nil {
		t.Skip("no MPTCP")
	}
	s, err := ReadSignals()
	if err != nil {
		t.Fatal(err)
	}
	if s.TCP < tcpInfoLen || s.TCP >= mostInfo || s.MPTCP < mptcpInfoLen || s.MPTCP >= mostInfo {
		t.Errorf("%+v", s)
	}
	for _, tt := range []struct {
		signals              Signals
		choosing, standstill string
	}{
		{Signals{248, 96}, "", ""},
		{Signals{tcpInfoSendWindow + 4, mptcpInfoCounted}, "", ""},
		{Signals{196, 48}, "struct tcp_info has 196 bytes, of which it needs 232; use Linux 5.4", "struct mptcp_info has 48 bytes, of which it needs 80; use Linux 6.5"},
	} {
		for _, probe := range []struct {
			err  error
			want string
		}{{tt.signals.Choosing(), tt.choosing}, {tt.signals.Standstills(), tt.standstill}} {
			if (probe.err == nil) != (probe.want == "") || probe.err != nil && (!strings.Contains(probe.err.Error(), probe.want) || !errors.Is(probe.err, errors.ErrUnsupported)) {
				t.Errorf("%+v: %v, want %q", tt.signals, probe.err, probe.want)
			}
		}
	}
}

func TestSchedulersByBPF(t *testing.T) {
	file := filepath.Join(t.TempDir(), "btf")
	if _, err := namesType(file, "a"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := os.WriteFile(file, []byte("\x00mptcp_sched_ops\x00bpf_struct_ops_mptcp_sched_ops\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"bpf_struct_ops_mptcp_sched_ops": true, "mptcp_sched_ops": true, "sched_ops": false} {
		if got, err := namesType(file, name); err != nil || got != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
