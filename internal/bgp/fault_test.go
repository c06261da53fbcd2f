package bgp

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
)

// TestWorstFault: of several faults of an UPDATE, status and log have the one that decided about
// the routes. An FRR that takes us for a member of its confederation sends these two.
func TestWorstFault(t *testing.T) {
	const path, pref = 2, 5
	var f faults
	var text bytes.Buffer
	f.add(slog.New(slog.NewTextHandler(&text, nil)), []message.Fault{
		{Attribute: path, Action: message.TreatedAsWithdraw, Detail: "confederation segment"},
		{Attribute: pref, Action: message.Discarded, Detail: "from an external neighbor"},
	}, time.Now())
	const want = "AS_PATH: confederation segment (treated as withdraw)"
	if f.last != want || strings.Count(text.String(), want) != 1 || strings.Count(text.String(), "\n") != 1 {
		t.Errorf("last fault %q, log:\n%s", f.last, &text)
	}
	if f.count[message.TreatedAsWithdraw] != 1 || f.count[message.Discarded] != 1 {
		t.Errorf("counts %v", f.count)
	}
}
