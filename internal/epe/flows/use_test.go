package flows

import (
	"bytes"
	"encoding/csv"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestUse: policies and reasons are shown where they are known, as text of a line.
func TestUse(t *testing.T) {
	_, s := busy(t)
	s.Use = func(local netip.Addr, remote netip.AddrPort) Use {
		if remote.Addr() != client {
			t.Errorf("asked for %v", remote)
		}
		return map[netip.Addr]Use{serverA: {"latency", "first"}, serverB: {"latency", "no \"gain\""}}[local]
	}
	var out bytes.Buffer
	if err := NewCSV(&out, 0).Write(s); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	if err != nil || len(rows) != 5 {
		t.Fatalf("%v, %v", rows, err)
	}
	var got []string
	for _, row := range rows[1:] {
		got = append(got, row[slices.Index(rows[0], "policy")]+"/"+row[slices.Index(rows[0], "use")])
	}
	slices.Sort(got)
	if want := "/,latency/first,latency/first,latency/no ?gain?"; strings.Join(got, ",") != want {
		t.Errorf("csv %q, want %s", got, want)
	}
	out.Reset()
	if err := NewJSON(&out, 0).Write(s); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Count(text, `"policy":"latency"`) != 3 || strings.Count(text, `"use":"no ?gain?"`) != 1 {
		t.Errorf("json %s", text)
	}
	text := NewTable(nil, TableOptions{}).draw(s)
	if !strings.Contains(text, "mptcp 0000cafe latency") || !strings.Contains(text, "lan, no ?gain?") || !strings.Contains(text, `transit "a", ü, first`) {
		t.Errorf("table %s", text)
	}
}
