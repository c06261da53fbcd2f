package tc

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoRedirect: this kernel cannot redirect packets from one interface to another.
var ErrNoRedirect = errors.New("this kernel cannot redirect packets between interfaces; it needs CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_U32 and CONFIG_NET_ACT_MIRRED")

// Redirect sends everything that the link is to send through another link instead, before the
// link's own qdisc, and has everything that is received there received by the link. What the link
// itself receives is not changed. It lasts as long as the two links; a second Redirect is an error.
// Errors wrap ErrNoRedirect when the kernel lacks it.
func Redirect(link, through string) error {
	if err := redirect(link, through); err != nil {
		return fmt.Errorf("redirect link %q through %q: %w", link, through, err)
	}
	return nil
}

func redirect(link, through string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	t, err := netlink.LinkByName(through)
	if err != nil {
		return err
	}
	// Redirect received packets first, so that replies to sent packets are not lost.
	if err := mirred(t, netlink.HANDLE_MIN_INGRESS, l, netlink.TCA_INGRESS_REDIR); err != nil {
		return err
	}
	return mirred(l, netlink.HANDLE_MIN_EGRESS, t, netlink.TCA_EGRESS_REDIR)
}

// EndRedirect ends a Redirect. A link that is not redirected is left as it is.
func EndRedirect(link string) error {
	if err := endRedirect(link); err != nil {
		return fmt.Errorf("end redirection of link %q: %w", link, err)
	}
	return nil
}

func endRedirect(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	filters, err := netlink.FilterList(l, netlink.HANDLE_MIN_EGRESS)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil // there is no hook for filters
	}
	if err != nil {
		return fmt.Errorf("list filters: %w", err)
	}
	for _, f := range filters {
		u, ok := f.(*netlink.U32)
		if !ok || u.Priority != priority || len(u.Actions) == 0 {
			continue
		}
		if _, ours := u.Actions[0].(*netlink.MirredAction); !ours {
			continue
		}
		if err := netlink.FilterDel(u); err != nil {
			return err
		}
	}
	return nil
}

// priority is the priority of the filters of Redirect.
const priority = 1

// mirred adds a filter that redirects all packets at one hook of a link to another link.
func mirred(at netlink.Link, hook uint32, to netlink.Link, how netlink.MirredAct) error {
	classify := &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: at.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
	if err := netlink.QdiscAdd(classify); err != nil && !errors.Is(err, unix.EEXIST) {
		return cannotRedirect(err)
	}
	all := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: at.Attrs().Index, Parent: hook, Priority: priority, Protocol: unix.ETH_P_ALL},
		Actions: []netlink.Action{&netlink.MirredAction{
			ActionAttrs: netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN}, MirredAction: how, Ifindex: to.Attrs().Index,
		}},
	}
	return cannotRedirect(netlink.FilterAdd(all))
}

// cannotRedirect says what the kernel's answer means. A kind that the kernel does not know is
// ENOENT.
func cannotRedirect(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", ErrNoRedirect, err)
	}
	return err
}
