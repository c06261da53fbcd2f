package edge

import (
	"bytes"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/kernel/statefile"
)

// TestNetworksFile: a file that is none of networks is moved aside with one line in the log, and
// one that is cut off is read as far as it goes.
func TestNetworksFile(t *testing.T) {
	now := time.Now()
	table := func() *belief.Table { return belief.New(belief.Options{Networks: 100, Start: belief.Best}) }
	known := table()
	for i := range 10 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, byte(i), 0}), 24)
		known.Closed(now.Add(-time.Minute), p, func() uint32 { return 64500 }, belief.Best, belief.Outcome{Bytes: belief.Bulk, Goodput: 1e6})
	}
	var good bytes.Buffer
	write := func(w io.Writer) error {
		return belief.Write(w, func(yield func(*belief.Record) bool) {
			for _, r := range known.RecordsOf(known.Prefixes()) {
				if !yield(&r) {
					return
				}
			}
		})
	}
	if err := write(&good); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		content string
		read    int
		aside   bool
	}{
		"good":            {good.String(), 10, false},
		"garbage":         {"\x00\x01garbage", 0, true},
		"empty":           {"", 0, true},
		"another version": {strings.Replace(good.String(), `"version":1`, `"version":9`, 1), 0, true},
		"cut off":         {good.String()[:good.Len()-20], 9, true},
	} {
		file := filepath.Join(t.TempDir(), "edge.networks")
		if err := os.WriteFile(file, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		got := table()
		readNetworks(file, now, got, slog.New(slog.NewTextHandler(&log, nil)))
		_, err := os.Stat(file + ".invalid")
		if got.Len() != tt.read || (err == nil) != tt.aside || strings.Count(log.String(), "\n") != map[bool]int{true: 1}[tt.aside] {
			t.Errorf("%s: read %d networks, moved aside: %v, log %s", name, got.Len(), err == nil, &log)
		}
		if err := statefile.Replace(file, write); err != nil {
			t.Error(err)
		}
		again := table()
		if readNetworks(file, now, again, slog.New(slog.DiscardHandler)); again.Len() != 10 {
			t.Errorf("%s: %d networks of the file that replaced it", name, again.Len())
		}
	}
	var log bytes.Buffer
	readNetworks(filepath.Join(t.TempDir(), "missing"), now, table(), slog.New(slog.NewTextHandler(&log, nil)))
	if log.Len() > 0 {
		t.Error(&log)
	}
}
