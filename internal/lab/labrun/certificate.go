package labrun

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"
)

// The names of a certificate's files in a lab's directory, which goes with the lab.
const (
	certificateFile = "site.pem"
	keyFile         = "site-key.pem"
)

// certificate is that of a lab's web server, made for one run. Nobody but the run's browsers trusts
// it.
type certificate struct {
	// files are the PEM files by name.
	files map[string][]byte
	// pin is the Base64 encoded SHA-256 of the subject's public key information.
	pin string
}

// newCertificate makes a certificate for a host name.
func newCertificate(host string) (_ certificate, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("make certificate for %q: %w", host, err)
		}
	}()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(0, 0, 7), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return certificate{}, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return certificate{}, err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return certificate{}, err
	}
	sum := sha256.Sum256(public)
	return certificate{
		files: map[string][]byte{
			certificateFile: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			keyFile:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		},
		pin: base64.StdEncoding.EncodeToString(sum[:]),
	}, nil
}
