package rtr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/bgp/policy"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// writeVRPs replaces the file that stayrtr reads.
func writeVRPs(t *testing.T, path string, list ...policy.VRP) {
	t.Helper()
	var roas []string
	for _, v := range list {
		roas = append(roas, fmt.Sprintf(`{"prefix":%q,"maxLength":%d,"asn":"AS%d","ta":"test"}`, v.Prefix, v.MaxLength, v.ASN))
	}
	text := fmt.Sprintf(`{"metadata":{"buildtime":"2026-01-01T00:00:00Z"},"roas":[%s]}`, strings.Join(roas, ","))
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o644), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

// TestStayRTR obtains VRPs, changes of them, and them again after a restart, from a real cache, in
// both versions.
func TestStayRTR(t *testing.T) {
	stayrtr := programs.Need(t, "stayrtr")
	ns := netnstest.New(t)
	if err := netns.Do(ns, func() error {
		return netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}})
	}); err != nil {
		t.Fatal(err)
	}
	for version := range maxVersion + 1 {
		t.Run(fmt.Sprintf("version=%d", version), func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "vrps.json")
			writeVRPs(t, file, one, two)
			address := netip.AddrPortFrom(netip.IPv6Loopback(), uint16(8282+version))
			start := func() (stop func()) {
				cmd := exec.Command(stayrtr, "-bind", address.String(), "-cache", file, "-checktime=false", "-metrics.addr", "",
					"-refresh", "1", "-protocol", fmt.Sprint(version), "-rtr.refresh", "3600", "-rtr.retry", "1", "-rtr.expire", "7200")
				cmd.Stderr = t.Output()
				if err := netns.Start(ns, cmd); err != nil {
					t.Fatal(err)
				}
				return func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
			}
			stop := start()
			defer func() { stop() }()
			changes := make(chan *policy.VRPs, 10)
			client, err := New(Options{
				Config:  Config{Caches: []Cache{{Address: address}}, Retry: time.Second},
				Changed: func(v *policy.VRPs) { changes <- v }, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
				dial: func(ctx context.Context, address netip.AddrPort) (conn net.Conn, err error) {
					err = netns.Do(ns, func() error {
						conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address.String())
						return err
					})
					return conn, err
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- client.Run(ctx) }()
			defer func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}()
			want := func(list ...policy.VRP) {
				t.Helper()
				slices.SortFunc(list, policy.VRP.Compare)
				select {
				case got := <-changes:
					if !slices.Equal(slices.Collect(got.All()), list) {
						t.Fatalf("got %v, want %v", slices.Collect(got.All()), list)
					}
				case <-time.After(20 * time.Second):
					t.Fatalf("no change; %+v", client.Status())
				}
			}
			want(one, two)
			writeVRPs(t, file, two, three) // announced by a Serial Notify
			want(two, three)
			stop()
			writeVRPs(t, file, one)
			stop = start()
			want(one)
			if client.caches[0].version != uint8(version) {
				t.Errorf("version %d", client.caches[0].version)
			}
		})
	}
}
