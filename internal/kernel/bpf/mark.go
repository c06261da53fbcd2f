package bpf

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Mark is a program for a route that sets the mark of a packet and has the packet routed again
// (BPF_LWT_REROUTE, Linux 5.1). A route that has it keeps it after Close.
type Mark struct{ program *ebpf.Program }

const (
	markOffset = 8   // of mark in struct __sk_buff
	lwtDrop    = 2   // BPF_DROP
	lwtReroute = 128 // BPF_LWT_REROUTE
)

// LoadMark loads the program for a mark on packets that are received (BPF_PROG_TYPE_LWT_IN). It
// returns a *feature.Error when this host cannot load it.
func LoadMark(mark uint32) (*Mark, error) {
	return loadMark(ebpf.LWTIn, setMark(mark))
}

// LoadSentMark loads the program for a mark on packets that are sent (BPF_PROG_TYPE_LWT_XMIT), after
// they were fragmented. It drops those whose mark has the same upper half: they have been here, and
// no rule is for their mark. It returns a *feature.Error when this host cannot load it.
func LoadSentMark(mark uint32) (*Mark, error) {
	const other = "other"
	set := setMark(mark)
	set[0] = set[0].WithSymbol(other)
	return loadMark(ebpf.LWTXmit, append(asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, markOffset, asm.Word), asm.RSh.Imm(asm.R2, 16),
		asm.JNE.Imm(asm.R2, int32(mark>>16), other),
		asm.Mov.Imm(asm.R0, lwtDrop), asm.Return(),
	}, set...))
}

func setMark(mark uint32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm32(asm.R2, int32(mark)), asm.StoreMem(asm.R1, markOffset, asm.R2, asm.Word),
		asm.Mov.Imm(asm.R0, lwtReroute), asm.Return(),
	}
}

func loadMark(kind ebpf.ProgramType, code asm.Instructions) (*Mark, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "tabane_mark", Type: kind, License: "Dual MIT/GPL", Instructions: code})
	if err != nil {
		return nil, refusal(err, needLinux)
	}
	return &Mark{p}, nil
}

// FD returns the file descriptor, which belongs to m.
func (m *Mark) FD() uint32 { return uint32(m.program.FD()) }

// Close closes the file descriptor.
func (m *Mark) Close() error { return m.program.Close() }
