package cli

import (
	"io"
	"net"
	"net/netip"
	"testing"
)

// TestStatusPortOfAnother: what answers there without HTTP is named as what it is, not by the words
// of Go's library.
func TestStatusPortOfAnother(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer func(net.Conn)
		want   string
	}{
		"SSH":    {func(c net.Conn) { io.WriteString(c, "SSH-2.0-OpenSSH_9.2\r\n"); io.Copy(io.Discard, c) }, errForeign.Error()},
		"binary": {func(c net.Conn) { io.WriteString(c, "\x00\x01\r\n\r\n"); io.Copy(io.Discard, c) }, errForeign.Error()},
		"closed": {func(c net.Conn) { c.Read(make([]byte, 1000)) }, "the connection was closed without an answer"},
		"reset":  {func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) }, "the connection was closed without an answer"},
		"silent": {func(c net.Conn) { io.Copy(io.Discard, c) }, "no answer within 5s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				if c, err := l.Accept(); err == nil {
					tt.answer(c)
					c.Close()
				}
			}()
			_, err = ask(t.Context(), netip.MustParseAddrPort(l.Addr().String()), "/status")
			if err == nil || err.Error() != tt.want {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}
