package doctor

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/mptcp/mptcpify"
	"github.com/tabane/tabane/internal/role"
)

// needRoot skips a test that makes network namespaces.
func needRoot(t *testing.T) {
	t.Helper()
	if PrivilegedForLab() == nil {
		return
	}
	if os.Getenv("TABANE_LAB") == "require" {
		t.Fatal("TABANE_LAB=require, and network namespaces cannot be made")
	}
	t.Skip("needs root")
}

// traces is what an examination could leave behind.
type traces struct {
	links, files, namespaces int
	home                     string
}

func look(t *testing.T) traces {
	t.Helper()
	count := func(dir string) int {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return len(entries)
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	// Threads in another namespace than the process's.
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	away := 0
	for _, thread := range threads {
		if ns, err := os.Readlink("/proc/self/task/" + thread.Name() + "/ns/net"); err == nil && ns != home {
			away++
		}
	}
	return traces{links: len(links), files: count("/proc/self/fd"), namespaces: away, home: home}
}

func TestExamineLeavesNothing(t *testing.T) {
	needRoot(t)
	Examine(nil) // what is opened once and for all is open now
	before := look(t)
	for range 3 {
		var g sync.WaitGroup
		for range 4 {
			g.Go(func() { Examine(nil) })
		}
		g.Wait()
	}
	// What was closing before may be closed by now, and a thread or file may still be closing.
	var after traces
	settled := func() bool {
		after = look(t)
		return after.files <= before.files && after.namespaces <= before.namespaces && after.links == before.links && after.home == before.home
	}
	for end := time.Now().Add(5 * time.Second); !settled() && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if !settled() {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

func TestExamine(t *testing.T) {
	list := Examine(nil)
	if len(list) < 15 {
		t.Errorf("only %d findings", len(list))
	}
	optional := false
	seen := map[string]bool{}
	for _, f := range list {
		if seen[f.Check] {
			t.Errorf("%s comes twice", f.Check)
		}
		seen[f.Check] = true
		if f.Needed && f.Optional {
			t.Errorf("%s is needed and optional", f.Check)
		}
		if f.Needed && optional {
			t.Errorf("%s is needed and comes after what is not", f.Check)
		}
		optional = !f.Needed
		if !slices.Contains([]State{OK, Missing, Limited, Unknown}, f.State) || f.Meaning == "" {
			t.Errorf("unfinished: %+v", f)
		}
		if (f.State == Missing || f.State == Limited) == (f.Remedy == "") {
			t.Errorf("remedy does not fit: %+v", f)
		}
	}
}

// TestExamineGateway: on the host of a gateway, nothing of other daemons, of the lab and of tools
// precedes what the gateway needs or is required, and each user of a check is known.
func TestExamineGateway(t *testing.T) {
	used, needed, unused := map[string]bool{}, map[string]bool{}, false
	for _, f := range Examine([]string{role.Gateway}) {
		if unused && !f.Unused {
			t.Errorf("%s comes after what is not used", f.Check)
		}
		unused = f.Unused
		used[f.Check], needed[f.Check] = !f.Unused, f.Needed
		for _, u := range f.Users {
			if _, daemon := role.Named(u); !daemon && !slices.Contains([]string{OpenGateway, lab, mptcpVerb, controls}, u) {
				t.Errorf("%s is used by %q", f.Check, u)
			}
		}
	}
	for _, check := range []string{"privilege", "TUN device", "clock", "MTU", "policy rules", "forwarding of IPv4", "rp_filter", "connection tracking", "tabane gateway"} {
		if !used[check] {
			t.Errorf("%s is not used by a gateway", check)
		}
	}
	for _, check := range []string{"MPTCP", "MPTCP limits", "SRv6 End.DT6", "forwarding of IPv6", "tcpdump", "file descriptors", "BTF", "tcx", "tabane edge"} {
		if used[check] || needed[check] {
			t.Errorf("%s is used by a gateway, or needed", check)
		}
	}
	if !needed["tabane gateway"] {
		t.Error("that the gateway can run is not needed")
	}
}

// TestRun makes trials that fail: one must not hide or cause another's failure.
func TestRun(t *testing.T) {
	needRoot(t)
	broken := trial{check: "broken", try: func(c *route.Conn) error {
		return put(c, route.Nexthop{ID: 9, Link: "no-such-link", SID: probeSID})
	}}
	results, made := run(broken, tryEncapRed, broken)
	if made != nil {
		t.Fatal(made)
	}
	if !errors.Is(results[0], errors.ErrUnsupported) || results[1] != nil || !errors.Is(results[2], errors.ErrUnsupported) {
		t.Errorf("got %v", results)
	}
	if err := Provides(role.SRv6); err != nil {
		t.Errorf("this kernel has SRv6: %v", err)
	}
}

// TestNeeds walks the needs of all daemons: each has its check.
func TestNeeds(t *testing.T) {
	needRoot(t)
	found := map[string]bool{}
	for _, f := range startable(nil) {
		found[f.Check] = true
		if f.State != OK {
			t.Errorf("%+v", f)
		}
	}
	for _, d := range role.All() {
		if d.Startable() != found["tabane "+d.Name] {
			t.Errorf("%s: startable %t, examined %t", d.Name, d.Startable(), found["tabane "+d.Name])
		}
	}
}

func TestStandstills(t *testing.T) {
	for name, tt := range map[string]struct {
		counters mptcp.Counters
		err      error
		state    State
		says     string
	}{
		"none":    {mptcp.Counters{}, nil, OK, "no data"},
		"sender":  {mptcp.Counters{Reinjected: 7}, nil, OK, "reinjected 7 fragments"},
		"dropped": {mptcp.Counters{BeyondWindow: 154}, nil, Limited, "154 times since boot"},
		"unknown": {mptcp.Counters{}, errors.New("gone"), Unknown, "gone"},
	} {
		f := standstills(func() (mptcp.Counters, error) { return tt.counters, tt.err })
		if f.State != tt.state || !strings.Contains(f.Meaning, tt.says) || (f.Remedy != "") != (tt.state == Limited) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestStripped(t *testing.T) {
	for name, tt := range map[string]struct {
		counters mptcp.Counters
		err      error
		state    State
		says     string
	}{
		"none":      {mptcp.Counters{}, nil, OK, "no connection"},
		"handshake": {mptcp.Counters{Stripped: 3}, nil, OK, "no connection"},
		"lost":      {mptcp.Counters{LostOptions: 5}, nil, Limited, "5 connections"},
		"unknown":   {mptcp.Counters{}, errors.New("gone"), Unknown, "gone"},
	} {
		f := stripped(func() (mptcp.Counters, error) { return tt.counters, tt.err })
		if f.State != tt.state || !strings.Contains(f.Meaning, tt.says) || (f.Remedy != "") != (tt.state == Limited) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestTokens(t *testing.T) {
	memory := func() (uint64, error) { return 24 << 30, nil }
	for _, tt := range []struct {
		name     string
		counters mptcp.Counters
		err      error
		state    State
		meaning  string
	}{
		{"never full", mptcp.Counters{Requested: 5, Accepted: 4, Stripped: 1}, nil, OK, "about 131072 MPTCP connections"},
		{"full", mptcp.Counters{Requested: 5, Accepted: 2, TableFull: 3}, nil, Limited, "3 connections became TCP since boot"},
		{"unreadable", mptcp.Counters{}, errors.New("refused"), Unknown, "refused"},
	} {
		f := tokens(func() (mptcp.Counters, error) { return tt.counters, tt.err }, memory)
		if f.State != tt.state || (f.Remedy != "") != (tt.state == Limited) || !strings.Contains(f.Meaning, tt.meaning) {
			t.Errorf("%s: %+v", tt.name, f)
		}
	}
}

func TestMultipathLimits(t *testing.T) {
	kernel := func() (mptcp.Manager, error) { return mptcp.KernelManager, nil }
	user := func() (mptcp.Manager, error) { return mptcp.UserManager, nil }
	for _, tt := range []struct {
		name    string
		manager func() (mptcp.Manager, error)
		limits  mptcp.Limits
		err     error
		state   State
	}{
		{"Linux' default", kernel, mptcp.Limits{Subflows: 2}, nil, Limited},
		{"no subflows", kernel, mptcp.Limits{AddAddrAccepted: 8}, nil, Limited},
		{"set", kernel, mptcp.Limits{Subflows: 8, AddAddrAccepted: 8}, nil, OK},
		{"user-space path manager", user, mptcp.Limits{}, nil, OK},
		{"unreadable", kernel, mptcp.Limits{}, errors.New("refused"), Unknown},
		{"no path manager", kernel, mptcp.Limits{}, &feature.Error{Feature: "MPTCP", Remedy: "a newer kernel"}, Missing},
	} {
		f := multipathLimits(tt.manager, func() (mptcp.Limits, error) { return tt.limits, tt.err })
		if f.State != tt.state || (f.Remedy != "") != (tt.state == Limited || tt.state == Missing) || f.Meaning == "" {
			t.Errorf("%s: %+v", tt.name, f)
		}
		if tt.state == Limited && !strings.Contains(f.Remedy, "ip mptcp limits set") {
			t.Errorf("%s: remedy %q", tt.name, f.Remedy)
		}
	}
}

func TestMptcpified(t *testing.T) {
	missing := &feature.Error{Feature: "X", Remedy: "do"}
	works := func() error { return nil }
	by := func(ways ...mptcpify.How) func(mptcpify.How) error {
		return func(how mptcpify.How) error {
			if slices.Contains(ways, how) {
				return nil
			}
			return missing
		}
	}
	for _, tt := range []struct {
		name      string
		multipath func() error
		supported func(mptcpify.How) error
		state     State
		remedy    string
	}{
		{"both", works, by(mptcpify.Seccomp, mptcpify.Preload), OK, ""},
		{"seccomp", works, by(mptcpify.Seccomp), OK, ""},
		{"preload", works, by(mptcpify.Preload), Limited, "do"},
		{"none", works, by(), Missing, "do"},
		{"no MPTCP", func() error { return missing }, by(mptcpify.Seccomp, mptcpify.Preload), Missing, "do"},
	} {
		if f := mptcpified(tt.multipath, tt.supported); f.State != tt.state || f.Remedy != tt.remedy {
			t.Errorf("%s: %+v, want %s with remedy %q", tt.name, f, tt.state, tt.remedy)
		}
	}
}

func TestSignals(t *testing.T) {
	ok := func() error { return nil }
	for _, tt := range []struct {
		signals mptcp.Signals
		bpf     bool
		state   State
		want    string
	}{
		{mptcp.Signals{TCP: 248, MPTCP: 96}, false, OK, "accepts no eBPF schedulers"},
		{mptcp.Signals{TCP: 248, MPTCP: 96}, true, OK, "which edge does not use"},
		{mptcp.Signals{TCP: 248, MPTCP: 48}, false, Limited, "stand still is not available"},
		{mptcp.Signals{TCP: 196, MPTCP: 48}, false, Limited, "(use: overflow, policies) is not available"},
	} {
		f := signals(ok, func() (mptcp.Signals, error) { return tt.signals, nil }, func() (bool, error) { return tt.bpf, nil })
		if f.State != tt.state || !strings.Contains(f.Meaning, tt.want) {
			t.Errorf("%+v: %+v", tt, f)
		}
	}
	if f := signals(func() error { return &feature.Error{Feature: "MPTCP"} }, nil, nil); f.State != Missing {
		t.Errorf("without MPTCP: %+v", f)
	}
}
