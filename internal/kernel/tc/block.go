package tc

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// Block silently drops all packets that the link would send: the link stays up, and no error is
// returned to forwarded traffic. (Sockets of this host see local congestion.) Packets that are
// queued in a token bucket filter of SetRate are still sent. SetRate and ClearRate end it. It
// returns a *feature.Error when the kernel has no TBF.
func Block(link string) error {
	if err := block(link); err != nil {
		return fmt.Errorf("block link %q: %w", link, err)
	}
	return nil
}

func block(name string) error {
	link, root, err := find(name)
	if err != nil {
		return err
	}
	if live, ok := root.(*netlink.Tbf); ok {
		live.Limit = noRoom
		return refusal(netlink.QdiscChange(live))
	}
	tbf, err := Rate{Rate: minRate}.on(link)
	if err != nil {
		return err
	}
	tbf.Limit = noRoom
	return refusal(netlink.QdiscReplace(tbf))
}

// noRoom is a queue limit in bytes that no packet fits into. A limit of 0 would not change the
// queue.
const noRoom = 1
