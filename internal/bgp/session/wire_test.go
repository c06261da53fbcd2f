package session

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
)

// wire is the neighbor's end of a connection, which sends what the test wants.
type wire struct {
	t testing.TB
	*end
}

// read returns the next message, or what ended the connection: "OPEN", "NOTIFICATION 6/2", "EOF".
func (w *wire) read() string {
	w.t.Helper()
	header := make([]byte, message.HeaderLen)
	if _, err := io.ReadFull(w.end, header); err != nil {
		if errors.Is(err, io.EOF) {
			return "EOF"
		}
		return err.Error()
	}
	typ, length, err := message.ParseHeader(header, message.MaxExtended)
	if err != nil {
		w.t.Fatal(err)
	}
	body := make([]byte, length-message.HeaderLen)
	if _, err := io.ReadFull(w.end, body); err != nil {
		w.t.Fatal(err)
	}
	if typ == message.TypeNotification {
		return fmt.Sprintf("NOTIFICATION %d/%d", body[0], body[1])
	}
	return typ.String()
}

// expect reads messages, separated by spaces; KEEPALIVEs before them are skipped unless expected.
func (w *wire) expect(want ...string) {
	w.t.Helper()
	for _, m := range want {
		got := w.read()
		for got == "KEEPALIVE" && m != got {
			got = w.read()
		}
		if got != m {
			w.t.Fatalf("received %s, want %s", got, m)
		}
	}
}

func (w *wire) write(b ...[]byte) {
	w.t.Helper()
	for _, m := range b {
		if _, err := w.Write(m); err != nil {
			w.t.Fatal(err)
		}
	}
}

// openOf returns the OPEN of the neighbor with a configuration.
func openOf(c Config, change func(*message.Open)) []byte {
	o := c.open()
	if change != nil {
		change(&o)
	}
	return o.Append(nil)
}

func raw(t message.Type, body ...byte) []byte {
	b := binary.BigEndian.AppendUint16([]byte(strings.Repeat("\xff", 16)), uint16(message.HeaderLen+len(body)))
	return append(append(b, byte(t)), body...)
}

var keepalive = message.AppendKeepalive(nil)

// emptyUpdate is an End-of-RIB.
func emptyUpdate() []byte { return raw(message.TypeUpdate, 0, 0, 0, 0) }

// bench is a session whose neighbor is the test.
type bench struct {
	*node
	t     testing.TB
	their Config
	dials chan *wire // connections that the session opened
}

// newBench returns a started session. Its attempts to connect succeed unless refusing is set.
func newBench(t testing.TB, conf Config) *bench {
	t.Helper()
	b := &bench{t: t, their: config(2, 1), dials: make(chan *wire, 100)}
	b.their.LocalASN, b.their.RemoteASN = conf.RemoteASN, conf.LocalASN
	b.node = newNode(t, conf, func(context.Context, *node) (net.Conn, error) {
		near, far := pipe(1 << 16)
		b.dials <- &wire{t, far}
		return near, nil
	})
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	return b
}

// connect opens a connection to the session.
func (b *bench) connect() *wire {
	near, far := pipe(1 << 16)
	b.offer(near)
	return &wire{b.t, far}
}

// establish opens a session on a connection.
func (b *bench) establish(w *wire) *wire {
	b.t.Helper()
	w.expect("OPEN")
	w.write(openOf(b.their, nil), keepalive)
	w.expect("KEEPALIVE")
	b.waitCalls("up")
	return w
}

// waitCalls waits for a call of the handler that starts with a word, and forgets those until then.
func (b *bench) waitCalls(word string) string {
	b.t.Helper()
	for deadline := time.After(time.Hour); ; {
		if log := b.log(); strings.Contains(log, word) {
			return log
		}
		select {
		case <-b.changed:
		case <-deadline:
			b.t.Fatalf("never called: %s; %+v", word, b.Status())
		}
	}
}

func (b *bench) stop() {
	b.Stop(cease(message.SubcodeShutdown), "end of the test")
	for len(b.dials) > 0 {
		_ = (<-b.dials).Close()
	}
}
