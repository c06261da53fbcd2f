package nft

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Follow sends to the channel that it returns after each change of nftables by any program, in
// the network namespace of the calling thread. Changes that follow each other faster than they are
// received count as one. It closes the channel when ctx ends.
func Follow(ctx context.Context) (<-chan struct{}, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("follow nftables: %w", err)
	}
	if err := c.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return nil, errors.Join(fmt.Errorf("follow nftables: %w", err), c.Close())
	}
	changes := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	go func() {
		defer close(changes)
		defer stop()
		for {
			messages, err := c.Receive()
			if err != nil && !errors.Is(err, unix.ENOBUFS) { // then changes were missed
				_ = c.Close()
				return
			}
			changed := err != nil
			for _, m := range messages {
				changed = changed || m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN
			}
			if !changed {
				continue
			}
			select {
			case changes <- struct{}{}:
			default:
			}
		}
	}()
	return changes, nil
}
