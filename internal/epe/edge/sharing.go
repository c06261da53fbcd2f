package edge

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/share"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/statefile"
)

// Store is where what is measured of networks is shared. The short forms are file, for this server
// alone, and the URL.
type Store struct {
	// URL is that of a Valkey or Redis server for all servers of a site:
	// valkey://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], or redis://; with TLS valkeys:// or
	// rediss://.
	// Example: "valkey://store.example:6379"
	URL string `yaml:"url,omitempty"`
	// PasswordFile is a file with the password, in place of one in the URL.
	// Example: /etc/tabane/store.password
	PasswordFile string `yaml:"password_file,omitempty"`
	// CA is a file with the certificates of the authorities that the server's is from. Default:
	// those of the system. Example: /etc/tabane/store-ca.pem
	CA string `yaml:"ca,omitempty"`
	// Certificate is a file with the certificate of this server, if the store asks for one.
	// Example: /etc/tabane/store.pem
	Certificate string `yaml:"certificate,omitempty"`
	// Key is a file with the private key of the certificate. Example: /etc/tabane/store.key
	Key string `yaml:"key,omitempty"`
	// Site is what the servers that share have in common: egress peers of the same names, and one
	// location. Default: the asn. Example: fra1
	Site string `yaml:"site,omitempty"`
}

const (
	storeFile = "file"
	// maxSite bounds the name of a site, maxSecret a file with a password or certificates, in
	// bytes.
	maxSite, maxSecret = 64, 1 << 20
)

// ParseShort implements field.Short.
func (s *Store) ParseShort(text string) error {
	*s = Store{}
	if text == storeFile {
		return nil
	}
	if _, err := share.Parse(text); err != nil {
		return fmt.Errorf("%w; or %s", err, storeFile)
	}
	s.URL = text
	return nil
}

// Short implements field.Short.
func (s *Store) Short() (string, bool) {
	return cmp.Or(s.URL, storeFile), *s == Store{URL: s.URL}
}

// check adds the faults of the store. It does not read the files.
func (s *Store) check(faults *fault.List, at string) {
	if *s == (Store{}) {
		return
	}
	o, err := share.Parse(s.URL)
	if err != nil {
		faults.Add(at+".url", "%v", err)
		return
	}
	if s.PasswordFile != "" && o.Password != "" {
		faults.Add(at+".password_file", "the URL has a password too")
	}
	if o.TLS == nil && (s.CA != "" || s.Certificate != "" || s.Key != "") {
		faults.Add(at+".url", "must begin with valkeys:// or rediss:// for ca, certificate and key, which are of TLS")
	}
	if (s.Certificate == "") != (s.Key == "") {
		faults.Add(at+".certificate", "needs key, and key needs certificate")
	}
	other := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.", r)
	}
	if len(s.Site) > maxSite || strings.ContainsFunc(s.Site, other) {
		faults.Add(at+".site", "must be at most %d letters, digits, dots, hyphens and underscores, got %.80q", maxSite, s.Site)
	}
}

// name is the URL without the password.
func (s *Store) name() string {
	o, _ := share.Parse(s.URL) // which was checked
	scheme, _, _ := strings.Cut(s.URL, "://")
	return scheme + "://" + o.Address
}

// open returns a client of the server with this router ID, with what is in the files.
func (s *Store) open(asn uint32, id netip.Addr) (*share.Client, error) {
	o, err := share.Parse(s.URL)
	if err != nil {
		return nil, err
	}
	o.Site, o.Server = cmp.Or(s.Site, strconv.FormatUint(uint64(asn), 10)), id.String()
	if s.PasswordFile != "" {
		text, err := statefile.Read(s.PasswordFile, maxSecret)
		if err != nil {
			return nil, err
		}
		o.Password = strings.TrimRight(string(text), "\r\n")
	}
	if s.CA != "" {
		text, err := statefile.Read(s.CA, maxSecret)
		if err != nil {
			return nil, err
		}
		if o.TLS.RootCAs = x509.NewCertPool(); !o.TLS.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("read certificates %q: there are none in PEM form", s.CA)
		}
	}
	if s.Certificate != "" {
		certificate, err := statefile.Read(s.Certificate, maxSecret)
		if err != nil {
			return nil, err
		}
		key, err := statefile.Read(s.Key, maxSecret)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("read certificate %q with key %q: %w", s.Certificate, s.Key, err)
		}
		o.TLS.Certificates = []tls.Certificate{pair}
	}
	return share.New(o), nil
}

const (
	// shareEvery is how often records are exchanged, shareFor how long an exchange may take.
	shareEvery, shareFor = 10 * time.Second, 3 * time.Second
	// mostShared bounds the networks of an exchange, of each kind: with shareEvery, 10 networks a
	// second.
	mostShared = 100
)

// StoreStatus is the store of a site in a Status.
type StoreStatus struct {
	Name string `json:"name"`
	// Up: the last exchange succeeded. Reason is why it did not: what is known here is used
	// meanwhile.
	Up     bool   `json:"up"`
	Reason string `json:"reason,omitempty"`
	// Written and Read count the records of networks, Invalid those of others that were ignored.
	Written uint64 `json:"written"`
	Read    uint64 `json:"read"`
	Invalid uint64 `json:"invalid"`
}

// exchanger exchanges records with a store.
type exchanger interface {
	Exchange(context.Context, belief.Exchange) (share.Result, error)
	Close()
}

// sharer exchanges what is measured of networks with other servers, beside the daemon's loop.
type sharer struct {
	open func() (exchanger, error)
	// loop runs a function in the daemon's loop, change one that changes routes.
	loop, change func(func())
	egress       *egress
	log          *slog.Logger
	store        exchanger // nil: not open

	mu     sync.Mutex
	status StoreStatus

	stop  context.CancelFunc
	ended chan struct{}
}

// startSharing begins to exchange records if the configuration has a store. It has one caller at a
// time, with stopSharing.
func (e *Edge) startSharing() {
	store := e.config.Delivery.Store
	if store.URL == "" {
		return
	}
	asn, id := e.config.ASN, e.config.RouterID
	s := &sharer{
		open:   func() (exchanger, error) { return store.open(asn, id) },
		loop:   e.inLoop,
		change: func(f func()) { e.daemon.Change(context.Background(), f) },
		egress: e.egress, log: e.log, ended: make(chan struct{}),
		status: StoreStatus{Name: store.name()},
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	e.sharer.Store(s)
	contain.Go(contain.Reconcile, e.log, func() {
		defer close(s.ended)
		s.run(ctx)
	})
}

// stopSharing ends the exchange, after a last one if the store answered.
func (e *Edge) stopSharing() {
	if s := e.sharer.Swap(nil); s != nil {
		s.stop()
		<-s.ended
	}
}

// run exchanges records until ctx ends. Servers that start together begin at different times.
func (s *sharer) run(ctx context.Context) {
	s.loop(func() { s.egress.auto.table.Share(true) })
	defer s.loop(func() { s.egress.auto.table.Share(false) })
	defer func() {
		if s.store != nil {
			s.store.Close()
		}
	}()
	for wait := rand.N(shareEvery); ; wait = shareEvery {
		select {
		case <-time.After(wait):
			s.exchange(ctx)
		case <-ctx.Done():
			if s.Status().Up {
				s.exchange(context.WithoutCancel(ctx))
			}
			return
		}
	}
}

// exchange exchanges what is due. What fails is due again.
func (s *sharer) exchange(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, shareFor)
	defer cancel()
	var x belief.Exchange
	s.loop(func() { x = s.egress.auto.table.Take(mostShared) })
	r, err := s.try(ctx, x)
	switch {
	case err != nil:
		s.loop(func() { s.egress.auto.table.Return(x) })
	case r.Refused != nil:
		err = fmt.Errorf("refused: %w", r.Refused)
		s.loop(func() { s.egress.auto.table.Return(belief.Exchange{Measured: x.Measured}) })
	}
	if len(r.Records) > 0 {
		s.change(func() { s.egress.shared(r.Records) })
	}
	s.report(x, r, err)
}

func (s *sharer) try(ctx context.Context, x belief.Exchange) (r share.Result, err error) {
	if s.store == nil {
		if s.store, err = s.open(); err != nil {
			s.store = nil
			return r, err
		}
	}
	return s.store.Exchange(ctx, x)
}

// report applies the result of an exchange to the status, and logs what changed.
func (s *sharer) report(x belief.Exchange, r share.Result, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.status
	s.status.Invalid += uint64(r.Invalid)
	for _, records := range r.Records {
		s.status.Read += uint64(len(records))
	}
	s.status.Up, s.status.Reason = err == nil, ""
	switch {
	case err == nil:
		s.status.Written += uint64(len(x.Measured))
		if !was.Up {
			s.log.Info("share what is measured of networks", "store", s.status.Name)
		}
	case errors.Is(err, context.Canceled): // it stops
	default:
		s.status.Reason = err.Error()
		if was.Up || was.Reason != s.status.Reason {
			s.log.Warn("share what is measured of networks failed; what is known here is used", "store", s.status.Name, "err", err)
		}
	}
	if was.Invalid == 0 && r.Invalid > 0 {
		s.log.Warn("ignored invalid records of the store", "store", s.status.Name, "records", r.Invalid, "err", r.Fault)
	}
}

// Status returns the status of the store.
func (s *sharer) Status() StoreStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// shared applies records of other servers, in the modes that networks can have here.
func (e *egress) shared(records map[netip.Prefix][]belief.Shared) {
	for prefix, list := range records {
		if e.auto.table.Apply(e.now(), prefix, e.able(prefix), list) {
			e.deliver(prefix)
		}
	}
}
