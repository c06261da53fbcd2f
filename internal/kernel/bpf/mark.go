package bpf

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Mark is a program for a route (BPF_PROG_TYPE_LWT_IN) that sets the mark of a packet and has the
// packet routed again (BPF_LWT_REROUTE, Linux 5.1). A route that has it keeps it after Close.
type Mark struct{ program *ebpf.Program }

// LoadMark loads the program for a mark. It returns a *feature.Error when this host cannot load it.
func LoadMark(mark uint32) (*Mark, error) {
	const (
		offset  = 8   // of mark in struct __sk_buff
		reroute = 128 // BPF_LWT_REROUTE
	)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "tabane_mark", Type: ebpf.LWTIn, License: "Dual MIT/GPL",
		Instructions: asm.Instructions{
			asm.Mov.Imm32(asm.R2, int32(mark)), asm.StoreMem(asm.R1, offset, asm.R2, asm.Word),
			asm.Mov.Imm(asm.R0, reroute), asm.Return(),
		},
	})
	if err != nil {
		return nil, refusal(err, needLinux)
	}
	return &Mark{p}, nil
}

// FD returns the file descriptor, which belongs to m.
func (m *Mark) FD() uint32 { return uint32(m.program.FD()) }

// Close closes the file descriptor.
func (m *Mark) Close() error { return m.program.Close() }
