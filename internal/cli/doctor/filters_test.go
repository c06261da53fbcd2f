package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// TestEgressFilters: a filter of a control group that drops what is encapsulated to a SID is
// a problem, but not one that drops packets to clients, too, or none.
func TestEgressFilters(t *testing.T) {
	netnstest.Need(t)
	root, err := bpf.Groups()
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	dir := fmt.Sprintf("%s/tabane-test-filters-%d", bpf.GroupPath(root), os.Getpid())
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Mkdir(dir+"/nginx.service", 0o755)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(os.Remove(dir+"/nginx.service"), os.Remove(dir)); err != nil {
			t.Error(err)
		}
	}()
	// Drops packets to addresses that begin with a byte.
	begins := func(first int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Imm(asm.R2, 24), asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, -8), asm.Mov.Imm(asm.R5, 0), asm.StoreMem(asm.R3, 0, asm.R5, asm.DWord),
			asm.Mov.Imm(asm.R4, 1), asm.FnSkbLoadBytes.Call(), asm.LoadMem(asm.R1, asm.R10, -8, asm.Byte),
			asm.Mov.Imm(asm.R0, 1), asm.JNE.Imm(asm.R1, first, "end"), asm.Mov.Imm(asm.R0, 0), asm.Return().WithSymbol("end"),
		}
	}
	sids := []netip.Addr{netip.MustParseAddr("fc00:1:1::"), netip.MustParseAddr("2001:db8:fc:1::")}
	for name, tt := range map[string]struct {
		program asm.Instructions
		state   State
		meaning string
	}{
		"accepts all":    {asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}, OK, "no control group drops packets to SIDs"},
		"drops all":      {asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}, OK, "no control group drops packets to SIDs"},
		"drops fc00::/8": {begins(0xfc), Limited, "/nginx.service: packets to SIDs (fc00:1:1::) are dropped, and its processes reach no client through these egress peers"},
		"drops fd00::/8": {begins(0xfd), OK, "no control group drops packets to SIDs"},
	} {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupSKB, AttachType: ebpf.AttachCGroupInetEgress, License: "GPL", Instructions: tt.program})
		if err != nil {
			t.Fatal(err)
		}
		l, err := link.AttachCgroup(link.CgroupOptions{Path: dir + "/nginx.service", Attach: ebpf.AttachCGroupInetEgress, Program: p})
		if err != nil {
			t.Fatal(err)
		}
		if f := egressFilters(dir, netip.MustParseAddr("2001:db8:1::10"), sids); f.State != tt.state || f.Meaning != tt.meaning {
			t.Errorf("%s: %+v", name, f)
		}
		if err := errors.Join(l.Close(), p.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
