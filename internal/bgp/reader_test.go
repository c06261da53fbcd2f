package bgp

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"
)

// TestEventsAfterManyWithoutOne: while nobody reads events, more routes come and go than a batch
// holds. They have no event, and those behind them must not wait for the next change.
func TestEventsAfterManyWithoutOne(t *testing.T) {
	s, err := New(Options{ASN: 65000, RouterID: netip.MustParseAddr("10.0.0.1"), NoListen: true, Report: ReportUnicast, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.Originate(UnicastRoute{Prefix: netip.MustParsePrefix("2001:db8:1::/48")}))
	all := routes(8 * maxBatch)
	last := all[len(all)-1].Prefix
	withdrawn := make([]netip.Prefix, len(all)-1)
	for i := range withdrawn {
		withdrawn[i] = all[i].Prefix
	}
	must(s.Originate(all...))
	must(s.Withdraw(withdrawn...))
	for deadline := time.After(10 * time.Second); ; {
		select {
		case events := <-s.Events():
			for _, e := range events {
				if u, ok := e.(UnicastPath); ok && u.Prefix == last && !u.Withdrawn {
					return
				}
			}
		case <-deadline:
			t.Fatal("the last route is not reported")
		}
	}
}
