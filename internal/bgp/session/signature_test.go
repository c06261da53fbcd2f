package session

import "testing"

// FuzzSignatureErrors: what the kernel may write in another version is an error at most.
func FuzzSignatureErrors(f *testing.F) {
	f.Add([]byte("TcpExt: TCPMD5NotFound TCPMD5Unexpected TCPMD5Failure\nTcpExt: 1 2 3\n"))
	f.Add([]byte("TcpExt: TCPMD5Failure\nTcpExt: x\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseSignatureErrors(b); err == nil && len(b) == 0 && s != (signatureErrors{}) {
			t.Errorf("%+v of nothing", s)
		}
	})
}
