package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabane/tabane/internal/cli/setup"
	"github.com/tabane/tabane/internal/gateway/enroll"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/join"
)

// TestInvitationExpires: without a site, a setup ends when the invitation does, says what to do,
// and leaves nothing of what it had done; nobody joins with the line after that.
func TestInvitationExpires(t *testing.T) {
	own, err := handshake.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	at, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(at.LocalAddr().(*net.UDPAddr).Port)
	invitation, err := join.Invite(own.Public(), port, []netip.Addr{netip.MustParseAddr("127.0.0.1")}, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	host := join.NewHost(own, invitation, func(handshake.PublicKey, join.Request) join.Answer {
		t.Error("a site has joined")
		return join.Answer{}
	}, rand.Reader)
	dir := t.TempDir()
	record, err := setup.NewRecord(filepath.Join(dir, "setup.json"))
	if err != nil {
		t.Fatal(err)
	}
	step := setup.Step{File: &setup.File{Path: filepath.Join(dir, "gateway.yaml"), Text: "gateway: {}\n"}}
	err = (&App{}).inside(t.Context(), "set up VPS", record, func() error {
		if err := record.Apply(step); err != nil {
			return err
		}
		defer at.Close()
		return enroll.Serve(t.Context(), at, host, time.Millisecond)
	})
	if err == nil || !strings.Contains(err.Error(), "no site has joined within 0 minutes: the line is void") || !strings.Contains(err.Error(), "run the command again") {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(time.Second, stop)
	if _, err := enroll.Join(ctx, nil, invitation, own, join.Request{Name: "late"}); !errors.Is(err, context.Canceled) {
		t.Errorf("after its end: %v", err)
	}
}

// TestInterruptedQuestion: a question ends with the command that asks it, without an answer.
func TestInterruptedQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		terminal, typed := io.Pipe()
		asked := make(chan error, 1)
		go func() {
			_, err := readLine(ctx, terminal)
			asked <- err
		}()
		synctest.Wait()
		stop()
		synctest.Wait()
		select {
		case err := <-asked:
			if !errors.Is(err, ErrInterrupted) {
				t.Errorf("got %v", err)
			}
		default:
			t.Error("it still waits for an answer")
		}
		_ = typed.Close()
		synctest.Wait()
	})
}
