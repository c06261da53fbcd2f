package tc

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// Block lets everything vanish that the link is to send from now on, without a sign: the link stays up, and what forwards
// through it is told nothing. (A socket of this very host hears of a local congestion.) What waits in a token bucket
// filter of SetRate is still sent. SetRate and ClearRate end it. It returns a *feature.Error when the kernel has no TBF.
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

// noRoom is the length of a queue, in bytes, that no packet fits into. 0 would leave the queue as it was.
const noRoom = 1
