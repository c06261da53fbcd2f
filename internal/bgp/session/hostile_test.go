package session

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
)

// TestHostileOpen: what a neighbor may send before the session is up, the answer, and what the
// operator sees.
func TestHostileOpen(t *testing.T) {
	their := config(2, 1)
	open := openOf(their, nil)
	changed := func(f func(*message.Open)) []byte { return openOf(their, f) }
	bad := func(at int, value byte) []byte {
		b := bytes.Clone(open)
		b[at] = value
		return b
	}
	for name, c := range map[string]struct {
		send   [][]byte
		answer string
		reason string
	}{
		"garbage marker":        {[][]byte{bad(3, 0)}, "NOTIFICATION 1/1", "Connection Not Synchronized"},
		"garbage":               {[][]byte{[]byte("GET / HTTP/1.1\r\nHost: fd00::1\r\n\r\n")}, "NOTIFICATION 1/1", "Connection Not Synchronized"},
		"huge message":          {[][]byte{append(bad(16, 0xff), make([]byte, 5000)...)}, "NOTIFICATION 1/2", "Bad Message Length"},
		"short message":         {[][]byte{bad(17, 19)}, "NOTIFICATION 1/2", "Bad Message Length"},
		"unknown type":          {[][]byte{bad(18, 9)}, "NOTIFICATION 1/3", "Bad Message Type"},
		"version":               {[][]byte{bad(19, 3)}, "NOTIFICATION 2/1", "Unsupported Version Number"},
		"as number":             {[][]byte{changed(func(o *message.Open) { o.ASN = 4200000000 })}, "NOTIFICATION 2/2", "Bad Peer AS (2/2): the neighbor's OPEN has another as number than 65002: 4200000000"},
		"hold time":             {[][]byte{changed(func(o *message.Open) { o.HoldTime = 2 })}, "NOTIFICATION 2/6", "Unacceptable Hold Time"},
		"families":              {[][]byte{changed(func(o *message.Open) { o.Families = message.Families(message.VPNv4) })}, "NOTIFICATION 2/7", "no common address family: ours are ipv6-unicast,vpnv6, the neighbor's vpnv4"},
		"no family":             {[][]byte{changed(func(o *message.Open) { o.Families = 0 })}, "NOTIFICATION 2/7", "no common address family"},
		"keepalive first":       {[][]byte{keepalive}, "NOTIFICATION 5/1", "unexpected KEEPALIVE"},
		"update first":          {[][]byte{emptyUpdate()}, "NOTIFICATION 5/1", "unexpected UPDATE"},
		"two opens":             {[][]byte{open, open}, "NOTIFICATION 5/2", "unexpected OPEN"},
		"update after open":     {[][]byte{open, emptyUpdate()}, "NOTIFICATION 5/2", "unexpected UPDATE"},
		"bad as":                {[][]byte{message.Notification{Code: 2, Subcode: 2}.Append(nil)}, "EOF", "the neighbor refused the session: NOTIFICATION received: OPEN Message Error/Bad Peer AS (2/2); does it have this router as neighbor with as number 65001?"},
		"shutdown":              {[][]byte{message.Shutdown(2, "back at 5").Append(nil)}, "EOF", `Cease/Administrative Shutdown (6/2): "back at 5"`},
		"refusal after open":    {[][]byte{open, message.Notification{Code: 6, Subcode: 5}.Append(nil)}, "EOF", "Cease/Connection Rejected (6/5)"},
		"part of a message":     {[][]byte{open[:30]}, "NOTIFICATION 4/0", "does not answer our OPEN"},
		"part of a header":      {[][]byte{open[:5]}, "NOTIFICATION 4/0", "does not answer our OPEN"},
		"nothing":               {nil, "NOTIFICATION 4/0", "does not answer our OPEN"},
		"no keepalive":          {[][]byte{open}, "NOTIFICATION 4/0", "does not answer our OPEN"},
		"notification too long": {[][]byte{raw(message.TypeNotification, make([]byte, 4077)...)}, "EOF", "unknown error (0/0)"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conf := config(1, 2)
				conf.Passive = true
				b := newBench(t, conf)
				defer b.stop()
				w := b.connect()
				w.expect("OPEN")
				go w.write(c.send...)
				w.expect(c.answer)
				synctest.Wait()
				s := b.Status()
				if !strings.Contains(s.Down, c.reason) || s.State != StateActive {
					t.Errorf("state %s, reason %q, want %q", s.State, s.Down, c.reason)
				}
				if calls := b.log(); calls != "" {
					t.Errorf("calls: %s", calls)
				}
				if strings.HasPrefix(c.answer, "NOTIFICATION") != (s.Sent.Code != 0) {
					t.Errorf("notification sent: %s", s.Sent)
				}
				_ = w.Close()
				b.establish(b.connect())
			})
		})
	}
}

// TestSlowOpen: an OPEN that arrives byte by byte does not extend its time.
func TestSlowOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := config(1, 2)
		conf.Passive = true
		b := newBench(t, conf)
		defer b.stop()
		for _, patience := range []time.Duration{openTimeout, 2 * openTimeout, 4 * openTimeout} {
			w, began := b.connect(), time.Now()
			var writer sync.WaitGroup
			writer.Go(func() {
				for _, octet := range openOf(b.their, nil) {
					time.Sleep(time.Second)
					if _, err := w.Write([]byte{octet}); err != nil {
						return
					}
				}
			})
			w.expect("OPEN", "NOTIFICATION 4/0", "EOF")
			if got := time.Since(began); got != patience {
				t.Errorf("connection closed after %s, want %s", got, patience)
			}
			_ = w.Close()
			writer.Wait()
		}
	})
}

var errTooMany = errors.New("too many prefixes")

// TestHostileUpdates: what a neighbor may send while the session is up.
func TestHostileUpdates(t *testing.T) {
	for name, c := range map[string]struct {
		send   []byte
		update error
		answer string
		reason string
	}{
		"garbage marker":  {make([]byte, 64), nil, "NOTIFICATION 1/1", "Connection Not Synchronized"},
		"too long":        {raw(message.TypeUpdate, make([]byte, 4078)...), nil, "NOTIFICATION 1/2", "Bad Message Length"},
		"open":            {openOf(config(2, 1), nil), nil, "NOTIFICATION 5/3", "unexpected OPEN"},
		"keepalive":       {raw(message.TypeKeepalive, 0), nil, "NOTIFICATION 1/2", "Bad Message Length"},
		"bad update":      {emptyUpdate(), &message.Error{Notification: message.Notification{Code: 3, Subcode: 1}, Detail: "cut off"}, "NOTIFICATION 3/1", "UPDATE Message Error/Malformed Attribute List (3/1): cut off"},
		"handler's error": {emptyUpdate(), errTooMany, "NOTIFICATION 6/0", "too many prefixes"},
		"refresh":         {raw(message.TypeRouteRefresh, 0, 2, 1, 1, 0), nil, "NOTIFICATION 7/1", "ROUTE-REFRESH Message Error"},
		"notification":    {message.Shutdown(4, "\x1b[31m").Append(nil), nil, "EOF", `NOTIFICATION received: Cease/Administrative Reset (6/4): "\x1b[31m"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conf := config(1, 2)
				conf.Passive = true
				b := newBench(t, conf)
				defer b.stop()
				b.update = func([]byte) error { return c.update }
				w := b.establish(b.connect())
				go w.write(c.send)
				w.expect(c.answer)
				calls := b.waitCalls("down")
				if !strings.Contains(calls, c.reason) {
					t.Errorf("calls: %s, want %s", calls, c.reason)
				}
				if s := b.Status(); s.Flaps != 1 || s.Up() || !strings.Contains(s.Down, c.reason) || s.LastReset != s.Down {
					t.Errorf("status %+v", s)
				}
				_ = w.Close()
			})
		})
	}
}
