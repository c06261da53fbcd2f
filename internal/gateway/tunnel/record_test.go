package tunnel

import (
	"bytes"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/testkit/accessor"
)

var records = []Record{
	Probe{7}, Answer{7, 1 << 31, 1500 * time.Microsecond, 1400},
	Report{
		Path: 15, Next: 1 << 59, Lost: 3, Bytes: 1 << 40, Base: -3 * time.Second, Delay: 20 * time.Millisecond, Jitter: time.Millisecond,
		Spread: time.Second, Standing: 15 * time.Millisecond, Late: 77,
	},
	Ack{9}, Progress{{3, 1 << 23}, {255, 7}}, Request{2, 1, []uint64{1 << 50}}, Request{15, 3, []uint64{7, 8, 7 + 1<<16 - 1}}, Hello{5, true}, PathAdd{3, unit.MbitPerSecond, UnknownRate, 2, true, "fiber"}, PathAdd{3, unit.MbitPerSecond, 0, 1<<30 - 1, false, ""}, PathRemove{2}, Scout{1 << 63}, Scouted{3, 15, UnknownRate, unit.MbitPerSecond, "lte"}, Scouted{}, Rated{unit.MbitPerSecond}, Rated{},
	NAT{1, netip.MustParseAddrPort("192.0.2.1:4790")}, NAT{1, netip.MustParseAddrPort("[2001:db8::1]:4790")},
	Register{4, netip.MustParseAddrPort("192.0.2.7:1"), netip.MustParseAddrPort("[2001:db8::9]:4790"), 90 * time.Second, unit.KbitPerSecond, unit.MbitPerSecond, 3, true, false},
	Register{HomeAgent: netip.MustParseAddrPort("192.0.2.9:4790"), CareOf: netip.MustParseAddrPort("192.0.2.7:1"), Cost: 1<<30 - 1, Open: true},
	Registered{4, HomeResources, netip.MustParseAddrPort("192.0.2.7:1"), 90 * time.Second, unit.KbitPerSecond, unit.MbitPerSecond, 3, false}, Bye{}, Open{1<<64 - 2},
	Registered{Path: 4, CareOf: netip.MustParseAddrPort("192.0.2.7:1"), Lifetime: time.Minute, Cost: 3, Open: true},
	PathUse{15, true, true, true, MaxInterval}, PathUse{Interval: MinInterval}, PathUse{Backup: true},
	Arrived{15, 1 << 40, 3}, Sent{1 << 50}, NATSession{CommandReset, nil},
	NATSession{CommandNAT, []Flow{
		{6, netip.MustParseAddrPort("10.1.0.1:1"), netip.MustParseAddrPort("10.2.0.1:65535")}, {58, netip.MustParseAddrPort("[2001:db8::1]:7"), netip.MustParseAddrPort("[2001:db8::2]:128")},
	}},
}

// encode writes records into one message, with numbers from 10 on.
func encode(all []Record) (b []byte) {
	for i, r := range all {
		if r.Type().Reliable() {
			b = AppendNumbered(b, 10+uint32(i), r)
		} else {
			b = AppendRecord(b, r)
		}
	}
	return b
}

func TestRecords(t *testing.T) {
	b := append(encode(records), 0, 0, 0)
	for i, want := range records {
		got, number, rest, err := NextRecord(b)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %#v %v, want %#v", got, err, want)
		}
		if want.Type().Reliable() && number != 10+uint32(i) {
			t.Errorf("%v has number %d, want %d", want.Type(), number, 10+i)
		}
		b = rest
	}
	if r, _, rest, err := NextRecord(b); r != nil || rest != nil || err != nil {
		t.Errorf("after the last: %v %v %v", r, rest, err)
	}
}

// A newer gateway may send records, and fields at the end of known ones, that this version skips.
func TestRecordsOfNewerVersions(t *testing.T) {
	b := []byte{99, 0, 2, 1, 2, 200, 0, 4, 0, 0, 0, 3, byte(recordAck), 0, 5, 0, 0, 0, 4, 77}
	for _, want := range []Record{Unknown{99}, Unknown{200}, Ack{4}} {
		got, _, rest, err := NextRecord(b)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %#v %v, want %#v", got, err, want)
		}
		b = rest
	}
}

func TestMalformedRecords(t *testing.T) {
	whole := AppendRecord(nil, records[2])
	negative := AppendNumbered(nil, 0, PathAdd{Up: -1})
	long := AppendNumbered(nil, 0, PathAdd{Name: strings.Repeat("n", maxName)})
	if _, _, _, err := NextRecord(long); err != nil {
		t.Error(err)
	}
	for name, b := range map[string][]byte{
		"only a type": {byte(recordAck)}, "cut off": whole[:len(whole)-1], "short body": {byte(recordAck), 0, 3, 1, 2, 3},
		"reliable without number": {byte(recordBye), 0, 0}, "path": {byte(recordPathRemove), 0, 5, 0, 0, 0, 0, MaxPaths},
		"negative rate": negative, "rate of no line": AppendNumbered(nil, 0, PathAdd{Down: MaxRate + 1}), "rate of 2^62": AppendNumbered(nil, 0, Register{Up: 1 << 62}),
		"name that is no text": AppendNumbered(nil, 0, PathAdd{Name: "\xff\xfe"}), "name for a terminal": AppendNumbered(nil, 0, PathAdd{Name: "a\x1b[2J"}),
		"name of two lines": AppendNumbered(nil, 0, PathAdd{Name: "a\nb"}), "name too long": append(long[:1:1], append([]byte{0, byte(len(long) - recordHead + 1)}, append(long[recordHead:len(long):len(long)], 'x')...)...),
		"delay of years": AppendRecord(nil, Report{Delay: 24 * 365 * time.Hour}),
	} {
		if r, _, _, err := NextRecord(b); err == nil {
			t.Errorf("%s: %#v", name, r)
		}
	}
}

// Over a path that loses records and acknowledgements and brings them out of order, each record
// arrives once and in order.
func TestReliableRecords(t *testing.T) {
	var out Outbox
	var in Inbox
	const n = 100
	put, got := 0, 0
	seed := uint32(1)
	random := func() uint32 {
		seed = seed*1664525 + 1013904223
		return seed >> 16
	}
	var late [][]byte
	for now := time.Duration(0); got < n; now += 10 * time.Millisecond {
		if now > time.Hour {
			t.Fatalf("%d of %d records after an hour", got, n)
		}
		if put < n && out.Put(PathRemove{uint8(put % MaxPaths)}) {
			put++
		}
		if b := out.Append(nil, 100, now, 50*time.Millisecond); len(b) > 0 {
			if len(b) > 100 {
				t.Fatalf("message of %d bytes", len(b))
			}
			late = append(late, b)
		}
		if len(late) == 0 || random()%3 == 0 {
			continue
		}
		i := int(random()) % len(late) // any message, also an old one
		for b := late[i]; len(b) > 0; {
			r, number, rest, err := NextRecord(b)
			if err != nil {
				t.Fatal(err)
			}
			if in.Take(number) {
				if r.(PathRemove).Path != uint8(got%MaxPaths) {
					t.Fatalf("record %d is %v", got, r)
				}
				got++
			}
			b = rest
		}
		if a, ok := in.Ack(); ok && random()%2 == 0 {
			out.Acked(a.Number)
		}
	}
	if a, _ := in.Ack(); a.Number != n-1 {
		t.Errorf("acknowledged %d, want %d", a.Number, n-1)
	}
}

func TestOutboxIsBounded(t *testing.T) {
	var o Outbox
	for range maxOutbox {
		if !o.Put(Bye{}) {
			t.Fatal("no room")
		}
	}
	if o.Put(Bye{}) {
		t.Error("room without end")
	}
	o.Acked(1 << 31) // of the future: refused
	if len(o.kept) != maxOutbox {
		t.Error("an acknowledgement of records that were never sent removed some")
	}
}

func FuzzRecords(f *testing.F) {
	f.Add(encode(records))
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			r, number, rest, err := NextRecord(b)
			if err != nil || r == nil {
				return
			}
			if len(rest) >= len(b) {
				t.Fatal("no progress")
			}
			accessor.Call(t, r)
			if _, unknown := r.(Unknown); !unknown {
				one := appendRecord(nil, r, nil)
				if r.Type().Reliable() {
					one = AppendNumbered(nil, number, r)
				}
				again, _, _, err := NextRecord(one)
				if err != nil || !reflect.DeepEqual(again, r) {
					t.Fatalf("%#v became %#v: %v", r, again, err)
				}
			}
			b = rest
		}
	})
}

func TestReportLen(t *testing.T) {
	if got := len(AppendRecord(nil, Report{})); got != ReportLen {
		t.Errorf("a report has %d bytes, want ReportLen %d", got, ReportLen)
	}
}

// TestAppendHello: the Hello of a session goes with any message until it is acknowledged, and
// changes nothing of when the others are due.
func TestAppendHello(t *testing.T) {
	var o Outbox
	if b := o.AppendHello(nil); len(b) != 0 {
		t.Errorf("without a record: %x", b)
	}
	o.Put(Hello{Endpoints: true})
	o.Put(PathAdd{Path: 1, Name: "lte"})
	want := AppendNumbered(nil, 0, Hello{Endpoints: true})
	due, _ := o.Due()
	for range 3 {
		if b := o.AppendHello(nil); !bytes.Equal(b, want) {
			t.Errorf("got %x, want %x", b, want)
		}
	}
	if now, _ := o.Due(); now != due {
		t.Errorf("records are due at %v, before at %v", now, due)
	}
	o.Acked(0)
	if b := o.AppendHello(nil); len(b) != 0 {
		t.Errorf("after the acknowledgment: %x", b)
	}
}
