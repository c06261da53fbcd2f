package tc

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// Block silently drops everything that the link is to send from now on: the link stays up, and no
// error is returned to forwarded traffic. (Sockets of this host see local congestion.) Packets that
// are queued in a token bucket filter of SetRate are still sent. SetRate and ClearRate end it. It
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

// noRoom is the length of a queue, in bytes, that no packet fits into. 0 would leave the queue as
// it was.
const noRoom = 1
