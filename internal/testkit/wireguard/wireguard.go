// Package wireguard runs wireguard-go in network namespaces, for benchmarks to compare with.
package wireguard

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/tabane/tabane/internal/kernel/netns"
)

// MTU is that of the interface.
const MTU = 1420

// Peer is the other end of a tunnel.
type Peer struct {
	Public   [32]byte
	Endpoint netip.AddrPort
	// Hosts are reached through the tunnel.
	Hosts netip.Prefix
}

// Start runs one end of a tunnel in this process, as an interface of a network namespace, which the
// caller sets up. It listens on the port of the peer's endpoint. close ends it, and removes the
// interface.
func Start(t testing.TB, namespace, name string, private [32]byte, peer Peer) (close func()) {
	t.Helper()
	var d *device.Device
	if err := netns.Do(namespace, func() error {
		link, err := tun.CreateTUN(name, MTU)
		if err != nil {
			return err
		}
		d = device.NewDevice(link, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, ""))
		return errors.Join(d.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=%d\npublic_key=%s\nendpoint=%v\nallowed_ip=%v\n",
			hex.EncodeToString(private[:]), peer.Endpoint.Port(), hex.EncodeToString(peer.Public[:]), peer.Endpoint, peer.Hosts)), d.Up())
	}); err != nil {
		t.Fatal(err)
	}
	return d.Close
}
