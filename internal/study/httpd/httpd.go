// Package httpd is the configuration of a web server: its listening sockets with their certificates
// and congestion controls. It serves nothing.
package httpd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"

	"github.com/tabane/tabane/internal/base/fault"
)

// Config is the `site:` section of a configuration file.
type Config struct {
	// Seed determines the content: equal seeds have equal pages. Default: 0.
	Seed uint64 `yaml:"seed,omitempty"`
	// Listen are the addresses to serve on. All of them serve the same.
	Listen []Listen `yaml:"listen"`
	// Status is where /status and /metrics are served. Default: port 9114 of ::1, or of
	// 127.0.0.1 if IPv6 is switched off.
	Status netip.AddrPort `yaml:"status,omitempty"`
}

// Listen is one listening socket.
type Listen struct {
	// Address is the address and port to serve on; [::] is all addresses, including IPv4.
	Address netip.AddrPort `yaml:"address"`
	// Congestion is the congestion control of the connections and their subflows, by its name in
	// the kernel. Default: that of the network namespace. Example: tabane_lia
	Congestion string `yaml:"congestion,omitempty"`
	// MPTCP is false to serve over TCP alone: clients that ask for MPTCP fall back to TCP. Default:
	// true. Example: false
	MPTCP *bool `yaml:"mptcp,omitempty"`
	// Certificate is the PEM file of the certificate chain for TLS, with which HTTP/2 is served as
	// well as HTTP/1.1. Default: none, HTTP/1.1 without TLS. Example: site.pem
	Certificate string `yaml:"certificate,omitempty"`
	// Key is the PEM file of the certificate's private key. Example: site-key.pem
	Key string `yaml:"key,omitempty"`
}

// maxCongestion is the longest name of a congestion control in bytes (TCP_CA_NAME_MAX without the
// NUL).
const maxCongestion = 15

// Check returns all faults of the configuration. It does not access the system.
func (c *Config) Check() fault.List {
	var faults fault.List
	if len(c.Listen) == 0 {
		faults.Add("listen", "must have at least one address")
	}
	seen := fault.Seen{}
	for i, l := range c.Listen {
		at := fmt.Sprintf("listen[%d]", i)
		faults.Merge(at, l.Check())
		seen.Check(&faults, at, "address", l.Address)
	}
	return faults
}

// Check returns all faults of the listening socket. It does not access the system.
func (l Listen) Check() fault.List {
	var faults fault.List
	if !l.Address.IsValid() || l.Address.Port() == 0 {
		faults.Add("address", "must have an address and a port > 0, got %v", l.Address)
	}
	if len(l.Congestion) > maxCongestion {
		faults.Add("congestion", "must have at most %d bytes, got %q", maxCongestion, l.Congestion)
	}
	if (l.Certificate == "") != (l.Key == "") {
		faults.Add("", "must have both certificate and key for TLS, or none of them")
	}
	return faults
}

// Files makes the names of the files of certificates relative to dir, and returns the faults of
// these files, which it reads.
func (c *Config) Files(dir string) fault.List {
	var faults fault.List
	for i := range c.Listen {
		faults.Merge(fmt.Sprintf("listen[%d]", i), c.Listen[i].Files(dir))
	}
	return faults
}

// Files is Config.Files for the files of one listening socket.
func (l *Listen) Files(dir string) fault.List {
	if l.Certificate == "" || l.Key == "" {
		return nil
	}
	for _, name := range []*string{&l.Certificate, &l.Key} {
		if !filepath.IsAbs(*name) {
			*name = filepath.Join(dir, *name)
		}
	}
	var faults fault.List
	if _, err := l.Load(); err != nil {
		faults.Add("certificate", "%v", err)
	}
	return faults
}

// Load reads the certificate and its key.
func (l Listen) Load() (tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(l.Certificate, l.Key)
	var path *fs.PathError
	if errors.As(err, &path) { // it has the file's name
		return c, err
	}
	if err != nil {
		return c, fmt.Errorf("read %q and %q: %w", l.Certificate, l.Key, err)
	}
	return c, nil
}
