package gateway

import (
	"errors"
	"log/slog"

	"github.com/tabane/tabane/internal/gateway/openplane"
	"github.com/tabane/tabane/internal/gateway/relay"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/nft"
	"github.com/tabane/tabane/internal/kernel/route"
)

// RemoveLeft removes what a gateway that was killed has left in the network namespace of the
// calling thread: routes, rules, programs, and rules of nftables. Where a gateway runs, it is
// ErrRunning.
func RemoveLeft(log *slog.Logger) error {
	lock, err := netns.Lock(lockName, ErrRunning)
	if err != nil {
		return err
	}
	defer lock.Close()
	_, err = nft.Permit(rulesOwner, nil)
	return errors.Join(err, nft.Delete(natTable), removeObjects(log), removePrograms())
}

// removeObjects removes the gateway's routes and rules.
func removeObjects(log *slog.Logger) error {
	c, err := route.Dial()
	if err != nil {
		return err
	}
	r := route.NewReconciler(c, route.Gateway, log)
	err = r.Resync()
	if err == nil {
		r.Clear()
		err = r.Flush()
	}
	return errors.Join(err, c.Close())
}

// removePrograms removes the programs that carry packets to open peers without the daemon.
func removePrograms() error {
	left, err := bpf.PinPath(pinName)
	if err != nil {
		return err
	}
	return errors.Join(relay.Clear(), openplane.Clear(left))
}
