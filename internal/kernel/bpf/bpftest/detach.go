package bpftest

import (
	"errors"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// DetachIngress detaches all tcx programs at ingress of an interface of the calling thread's network
// namespace, as bpftool link detach does. An index alone says too little: other namespaces have
// interfaces with the same one.
func DetachIngress(index int) error {
	all, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range all.Programs {
		id, ok := p.LinkID()
		if !ok {
			return errors.New("the program has no link")
		}
		l, err := link.NewFromID(id)
		if err != nil {
			return err
		}
		errs = append(errs, l.Detach(), l.Close())
	}
	return errors.Join(errs...)
}
