package edge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/outcome"
	"github.com/tabane/tabane/internal/epe/share"
	"github.com/tabane/tabane/internal/testkit/certificate"
)

// fakeStore is a store of one other server.
type fakeStore struct {
	written  []belief.Shared
	has      map[netip.Prefix][]belief.Shared
	err      error
	refused  error
	invalid  int
	slow     bool // answers never
	closed   bool
	calls    atomic.Int32
	sawAsked int
}

func (f *fakeStore) Exchange(ctx context.Context, x belief.Exchange) (r share.Result, err error) {
	f.calls.Add(1)
	if f.slow {
		<-ctx.Done()
		return r, ctx.Err()
	}
	if f.err != nil {
		return r, f.err
	}
	f.sawAsked += len(x.Asked)
	if f.refused == nil {
		f.written = append(f.written, x.Measured...)
	}
	r = share.Result{Records: map[netip.Prefix][]belief.Shared{}, Invalid: f.invalid, Refused: f.refused}
	for _, p := range x.Asked {
		if list := f.has[p]; list != nil {
			r.Records[p] = list
		}
	}
	return r, nil
}

func (f *fakeStore) Close() { f.closed = true }

func (a *autoEgress) sharer(f *fakeStore) (*sharer, *bytes.Buffer) {
	var log bytes.Buffer
	run := func(f func()) { f() }
	a.auto.table.Share(true)
	return &sharer{
		open: func() (exchanger, error) { return f, nil }, loop: run, change: run, egress: a.egress,
		log: slog.New(slog.NewTextHandler(&log, nil)), status: StoreStatus{Name: "valkey://store:6379"},
	}, &log
}

// TestSharing: a network begins with what other servers measured, through the routes of this one.
func TestSharing(t *testing.T) {
	one, two := newAutoEgress(t, false), newAutoEgress(t, false)
	var store fakeStore
	sharer, log := one.sharer(&store)
	rates := map[string]uint64{"none": 1e6, sidA: 1e6, sidB: 2e6, sidA + "*1 " + sidB + "*1": 1.4e6}
	for range 20 {
		one.trial(autoNetwork, rates)
	}
	sharer.exchange(t.Context())
	if len(store.written) != 1 || len(store.written[0].Modes) < 2 || !sharer.Status().Up || sharer.Status().Written != 1 {
		t.Fatalf("wrote %+v, %+v, %s", store.written, sharer.Status(), log)
	}
	second := fakeStore{has: map[netip.Prefix][]belief.Shared{netip.MustParsePrefix(autoNetwork): store.written}}
	sharer, log = two.sharer(&second)
	sharer.exchange(t.Context())
	if second.sawAsked != 0 {
		t.Error("asked for networks that nothing is known of")
	}
	two.observed([]outcome.Report{two.report(outcome.Closed, autoNetwork, belief.Bulk)})
	sharer.exchange(t.Context())
	if s := two.status(autoNetwork); two.delivered(autoNetwork) != sidB || !strings.Contains(s.Why, "other servers") || sharer.Status().Read != 1 {
		t.Errorf("begins with %s: %+v, %s", two.delivered(autoNetwork), s, log)
	}
	if two.delivered(otherNetwork) != "none" {
		t.Errorf("another network is delivered through %s", two.delivered(otherNetwork))
	}
	// A peer that other servers reach and this one does not is no mode here.
	three := newAutoEgress(t, false)
	three.announce(2, autoNetwork, false)
	sharer, _ = three.sharer(&second)
	three.observed([]outcome.Report{three.report(outcome.Closed, autoNetwork, belief.Bulk)})
	sharer.exchange(t.Context())
	if got := three.delivered(autoNetwork); got == sidB || got == sidA+"*1 "+sidB+"*1" {
		t.Errorf("delivered through %s, which has no route", got)
	}
}

// TestStoreFails: what could not be exchanged is due again, and what failed is said once.
func TestStoreFails(t *testing.T) {
	a := newAutoEgress(t, false)
	store := fakeStore{err: errors.New("connection refused")}
	sharer, log := a.sharer(&store)
	for range 3 {
		a.trial(autoNetwork, map[string]uint64{"none": 1e6, sidA: 1e6, sidB: 2e6})
	}
	for range 3 {
		sharer.exchange(t.Context())
	}
	if s := sharer.Status(); s.Up || s.Reason != "connection refused" || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("%+v, %s", s, log)
	}
	store.err, store.refused, store.invalid = nil, errors.New("OOM"), 2
	sharer.exchange(t.Context())
	if s := sharer.Status(); s.Up || s.Reason != "refused: OOM" || s.Invalid != 2 {
		t.Errorf("%+v", s)
	}
	store.refused, store.invalid = nil, 0
	sharer.exchange(t.Context())
	if s := sharer.Status(); !s.Up || s.Reason != "" || len(store.written) != 1 || s.Written != 1 {
		t.Errorf("%+v, wrote %d", s, len(store.written))
	}
	if strings.Count(log.String(), "\n") != 4 {
		t.Error(log)
	}
	sharer.store, sharer.open = nil, func() (exchanger, error) { return nil, errors.New("no such file") }
	if sharer.exchange(t.Context()); sharer.Status().Reason != "no such file" {
		t.Errorf("%+v", sharer.Status())
	}
}

// TestSlowStore: a store that never answers costs the loop nothing, and a stop waits for it only if
// it answered before.
func TestSlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAutoEgress(t, false)
		store := &fakeStore{slow: true}
		sharer, _ := a.sharer(store)
		sharer.loop = func(f func()) {
			at := time.Now()
			if f(); time.Since(at) > 0 {
				t.Error("the loop waited")
			}
		}
		sharer.change = sharer.loop
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); sharer.run(ctx) }()
		time.Sleep(time.Minute)
		if n := store.calls.Load(); n < 3 || n > 6 || sharer.Status().Reason == "" {
			t.Errorf("%d exchanges in a minute, %+v", n, sharer.Status())
		}
		at := time.Now()
		if stop(); true {
			<-ended
		}
		if time.Since(at) > shareFor || !store.closed {
			t.Errorf("stopped after %v, closed: %v", time.Since(at), store.closed)
		}
	})
}

// TestLastExchange: what was measured since is written at a stop.
func TestLastExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAutoEgress(t, false)
		var store fakeStore
		sharer, _ := a.sharer(&store)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); sharer.run(ctx) }()
		time.Sleep(shareEvery)
		synctest.Wait()
		a.trial(autoNetwork, map[string]uint64{"none": 1e6, sidA: 1e6, sidB: 2e6})
		stop()
		<-ended
		if len(store.written) != 1 {
			t.Errorf("wrote %d networks", len(store.written))
		}
	})
}

func TestStoreConfig(t *testing.T) {
	for text, want := range map[string]string{"file": "", "valkey://host": "valkey://host:6379", "rediss://u:secret@host:1/2": "rediss://host:1"} {
		var s Store
		if err := s.ParseShort(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if short, ok := s.Short(); short != text || !ok {
			t.Errorf("%s: %s, %v", text, short, ok)
		}
		if want != "" && s.name() != want {
			t.Errorf("%s: named %s", text, s.name())
		}
		var faults fault.List
		if s.check(&faults, "store"); len(faults) > 0 {
			t.Errorf("%s: %v", text, faults)
		}
	}
	if err := new(Store).ParseShort("memcached://host"); err == nil || !strings.Contains(err.Error(), "valkey://") || !strings.Contains(err.Error(), "file") {
		t.Error(err)
	}
	for name, s := range map[string]Store{
		"no URL":           {Site: "x"},
		"two passwords":    {URL: "valkey://:a@host", PasswordFile: "/x"},
		"CA without TLS":   {URL: "valkey://host", CA: "/x"},
		"key alone":        {URL: "valkeys://host", Key: "/x"},
		"certificate only": {URL: "valkeys://host", Certificate: "/x"},
		"site":             {URL: "valkey://host", Site: "a:b"},
		"long site":        {URL: "valkey://host", Site: strings.Repeat("x", maxSite+1)},
	} {
		var faults fault.List
		if s.check(&faults, "store"); len(faults) != 1 || !strings.Contains(fmt.Sprint(faults), "store.") {
			t.Errorf("%s: %v", name, faults)
		}
		if _, ok := s.Short(); ok {
			t.Errorf("%s: has a short form", name)
		}
	}
}

// TestStoreFiles: what is wrong with a file is said with its name.
func TestStoreFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	certificate.Write(t, dir, "server")
	certificateFile, keyFile := filepath.Join(dir, "server.pem"), filepath.Join(dir, "server-key.pem")
	garbage, missing := write("garbage", "no PEM"), filepath.Join(dir, "missing")
	password := write("password", "secret\n")
	for _, s := range []Store{
		{PasswordFile: missing}, {PasswordFile: dir}, {CA: missing}, {CA: garbage}, {Certificate: missing, Key: keyFile}, {Certificate: certificateFile, Key: missing}, {Certificate: garbage, Key: keyFile},
	} {
		s.URL = "valkeys://host"
		if _, err := s.open(65000, netip.MustParseAddr("10.0.0.1")); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	s := Store{URL: "valkeys://host", PasswordFile: password, CA: certificateFile, Certificate: certificateFile, Key: keyFile}
	if _, err := s.open(65000, netip.MustParseAddr("10.0.0.1")); err != nil {
		t.Error(err)
	}
}
