package nft

import (
	"context"
	"testing"

	"github.com/google/nftables"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// TestFollow: a change is reported, and the channel is closed at the end.
func TestFollow(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ns := netnstest.New(t)
	var changes <-chan struct{}
	netnstest.Do(t, ns, func() (err error) { changes, err = Follow(ctx); return err })
	for range 2 {
		netnstest.Do(t, ns, func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			c.AddTable(&nftables.Table{Name: "other", Family: nftables.TableFamilyINet})
			return c.Flush()
		})
		if _, open := <-changes; !open {
			t.Fatal("the channel was closed")
		}
		netnstest.Do(t, ns, func() error { return Delete("other") })
		<-changes
	}
	cancel()
	if _, open := <-changes; open {
		t.Error("another change was reported")
	}
}
