package doctor

import (
	"errors"

	"github.com/tabane/tabane/internal/tun"
	"github.com/tabane/tabane/internal/udp"
)

// tryTUN makes a TUN device in a namespace of its own, and returns whether it takes UDP
// super-packets.
func tryTUN() (udpOffload bool, err error) {
	err = isolated(func() (err error) {
		udpOffload, err = tun.Probe()
		return err
	})
	return udpOffload, err
}

// gatewayOffloads returns what the speed of a gateway depends on.
func gatewayOffloads() []Finding {
	device := Finding{Check: "TUN device", State: OK, Meaning: "a gateway takes and gives packets, TCP in super-packets"}
	super := Finding{Check: "TUN UDP offload", State: OK, Meaning: "a gateway takes and gives UDP in super-packets too (optional)"}
	switch offload, err := tryTUN(); {
	case err != nil:
		device.check(err)
		super.State, super.Meaning = Unknown, "needs the TUN device"
		if errors.Is(err, ErrNotChecked) {
			device.Remedy = "run as root to check"
		}
	case !offload:
		super.State, super.Meaning, super.Remedy = Limited, "a gateway takes UDP packets one by one, at several times the CPU time", "use Linux 6.2 or newer"
	}
	list := []Finding{device, super}
	segment, gro := udp.Probe()
	for _, f := range []struct {
		check, good string
		err         error
	}{
		{"UDP segmentation", "a gateway sends packets in batches (UDP_SEGMENT, optional)", segment},
		{"UDP receive offload", "a gateway receives packets in batches (UDP_GRO, optional)", gro},
	} {
		finding := Finding{Check: f.check, State: OK, Meaning: f.good}
		finding.check(f.err)
		list = append(list, finding)
	}
	return list
}
