package certificate

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"testing"
)

func TestCertificate(t *testing.T) {
	c, err := New("server")
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := tls.X509KeyPair(c.Chain, c.Key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(loaded.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := parsed.VerifyHostname("server"); err != nil {
		t.Error(err)
	}
	sum := sha256.Sum256(parsed.RawSubjectPublicKeyInfo)
	if c.Pin != base64.StdEncoding.EncodeToString(sum[:]) {
		t.Errorf("pin %q", c.Pin)
	}
}
