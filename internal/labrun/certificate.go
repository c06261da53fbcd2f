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
	"os"
	"path/filepath"
	"time"
)

// certificate is that of a lab's web server, made for one run. Nobody but the run's browsers trusts it.
type certificate struct {
	dir string
	// file and key are the PEM files.
	file, key string
	// pin is the Base64 encoded SHA-256 of the subject's public key information.
	pin string
}

// newCertificate makes a certificate for a host name, in a temporary directory.
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
	dir, err := os.MkdirTemp("", "tabane-lab-certificate-")
	if err != nil {
		return certificate{}, err
	}
	sum := sha256.Sum256(public)
	c := certificate{dir: dir, file: filepath.Join(dir, "site.pem"), key: filepath.Join(dir, "site-key.pem"), pin: base64.StdEncoding.EncodeToString(sum[:])}
	for name, block := range map[string]*pem.Block{c.file: {Type: "CERTIFICATE", Bytes: der}, c.key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			os.RemoveAll(dir)
			return certificate{}, err
		}
	}
	return c, nil
}

func (c certificate) remove() error {
	if c.dir == "" {
		return nil
	}
	return os.RemoveAll(c.dir)
}
