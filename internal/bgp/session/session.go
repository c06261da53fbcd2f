// Package session establishes and maintains BGP sessions: TCP connections with their socket
// options, the finite state machine of RFC 4271 section 8, and the listener.
//
// It passes UPDATEs as bytes and knows no routes. A session has one goroutine, an established one
// three; a connection that is being opened has one more, and there are at most two of these per
// session. All of them wait in Go's network poller or on channels, never in a thread.
package session

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
)

// Config describes a session. It is not changed after New.
type Config struct {
	// Remote is the neighbor's address and port; a link-local address has its interface as
	// zone.
	Remote netip.AddrPort
	// Local is the address of this end, without zone. If it is invalid, the kernel selects it.
	Local netip.Addr

	LocalASN, RemoteASN uint32
	RouterID            netip.Addr // IPv4
	// Capabilities are those of our OPEN. FourOctetAS is always added.
	message.Capabilities
	// HoldTime is proposed to the neighbor, in whole seconds: 0 or at least 3 s.
	HoldTime time.Duration
	// SendHoldTime is how long the neighbor may accept no data before the session is closed
	// (RFC 9687). If it is 0, it is twice the negotiated hold time, at least 8 minutes.
	SendHoldTime time.Duration
	// ConnectRetry is the time from one attempt to connect to the next; it is shortened by up to
	// a quarter at random (RFC 4271 section 10).
	ConnectRetry time.Duration
	Passive      bool // wait for the neighbor's connection

	Password string // TCP MD5 (RFC 2385); at most 80 bytes
	// Multihop is the hop limit towards a neighbor of another AS; 0: directly connected.
	Multihop uint8
	// GTSM accepts only packets that come from at most Multihop hops away (RFC 5082), by
	// default 1, and sends with hop limit 255.
	GTSM bool

	// Unreached, unless nil, is called when an attempt to connect soon after Connect or Enable was
	// not answered, before the next one. It may block.
	Unreached func(remote netip.Addr)
	// Listener passes the neighbor's connections to the session. If it is nil, there are none.
	Listener *Listener
	Log      *slog.Logger // names the neighbor
}

// MaxPassword is the kernel's limit of a password, TCP_MD5SIG_MAXKEYLEN, in bytes.
const MaxPassword = 80

func (c Config) check() error {
	remote := c.Remote.Addr()
	switch {
	case !remote.IsValid() || remote.Is4In6() || remote.IsUnspecified() || remote.IsMulticast() || c.Remote.Port() == 0:
		return fmt.Errorf("remote address %s is not that of a host", c.Remote)
	case remote.Is6() && remote.IsLinkLocalUnicast() != (remote.Zone() != ""):
		return fmt.Errorf("remote address %s: a link-local address, and no other, has a zone", remote)
	case c.Local.IsValid() && (c.Local.Is4() != remote.Is4() || c.Local.Is4In6() || c.Local.Zone() != ""):
		return fmt.Errorf("local address %s does not fit the remote address %s", c.Local, remote)
	case c.LocalASN == 0 || c.RemoteASN == 0:
		return errors.New("as numbers must be > 0")
	case !c.RouterID.Is4() || c.RouterID.IsUnspecified():
		return fmt.Errorf("router id %s is not an IPv4 address other than 0.0.0.0", c.RouterID)
	case c.Families == 0:
		return errors.New("families are missing")
	case c.HoldTime < 0 || c.HoldTime > 0 && c.HoldTime < minHoldTime || c.HoldTime > maxHoldTime || c.HoldTime%time.Second != 0:
		return fmt.Errorf("hold time must be 0 or whole seconds from %s to %s, got %s", minHoldTime, maxHoldTime, c.HoldTime)
	case c.SendHoldTime < 0:
		return fmt.Errorf("send hold time must be >= 0, got %s", c.SendHoldTime)
	case c.ConnectRetry <= 0:
		return fmt.Errorf("connect retry must be > 0, got %s", c.ConnectRetry)
	case c.Multihop != 0 && c.internal() && !c.GTSM:
		return errors.New("multihop needs a neighbor of another as, or gtsm")
	case len(c.Password) > MaxPassword:
		return fmt.Errorf("password must be at most %d bytes, got %d", MaxPassword, len(c.Password))
	case c.Log == nil:
		return errors.New("logger is missing")
	}
	return nil
}

const (
	minHoldTime = 3 * time.Second // RFC 4271 section 4.2
	maxHoldTime = 65535 * time.Second
)

// internal reports whether both ends are in one AS.
func (c Config) internal() bool { return c.LocalASN == c.RemoteASN }

// open returns our OPEN message.
func (c Config) open() message.Open {
	o := message.Open{ASN: c.LocalASN, HoldTime: uint16(c.HoldTime / time.Second), RouterID: c.RouterID, Capabilities: c.Capabilities}
	o.FourOctetAS = true
	return o
}

// Handler is what a session works for. For each established session, Up is called first and Down
// last, both once. In between, Update and Refresh are called in one goroutine and Fill in
// another. Down is called after all other calls have returned. No function may call Stop; Reset,
// Disable, Enable, Connect and Wake are allowed.
type Handler struct {
	// Up is called when the session is established, before any other function. It may block: the
	// session is kept alive meanwhile.
	Up func(Established)
	// Update handles the body of an UPDATE message, which is valid until it returns. It may
	// block: the neighbor is not read from meanwhile, and the hold timer does not expire.
	// A *message.Error ends the session with its NOTIFICATION, another error with Cease.
	Update func(body []byte) error
	// Refresh handles a ROUTE-REFRESH.
	Refresh func(message.Refresh) error
	// Fill appends whole messages to buf, not beyond its capacity where possible, and returns
	// it. It is called after Up and after Wake, and again until it appends nothing. It does not
	// keep buf.
	Fill func(buf []byte) []byte
	// Down is called when the session has ended. The next one is not opened before it returns.
	Down func(Reason)
}

// Established describes a session that is up.
type Established struct {
	message.Negotiated
	Local, Remote netip.AddrPort // of the connection; a link-local address has a zone
	Open          message.Open   // of the neighbor
	HoldTime      time.Duration  // negotiated; 0: none
}

// Reason is why a session ended.
type Reason struct {
	// Text is the reason, as given to Reset, Disable or Stop if these ended it.
	Text string
	// Sent or Received is the NOTIFICATION that ended the session; its Code is 0 if there is
	// none.
	Sent, Received message.Notification
	// Local: it was ended by Reset, Disable or Stop.
	Local bool
}

// State is a state of RFC 4271 section 8.2.2.
type State uint8

const (
	StateIdle State = iota // disabled
	StateConnect
	StateActive
	StateOpenSent
	StateOpenConfirm
	StateEstablished
)

func (s State) String() string {
	return [...]string{"Idle", "Connect", "Active", "OpenSent", "OpenConfirm", "Established"}[s]
}

// Session is a BGP session with one neighbor. It is safe for concurrent use.
type Session struct {
	conf    Config
	handler Handler
	// dial is replaced by tests.
	dial dialFunc

	incoming chan net.Conn // connections that the listener accepted
	events   chan func()   // calls from the goroutines of connections and dials
	kick     chan struct{} // there are commands
	wake     chan struct{} // the writer shall call Fill
	done     chan struct{} // closed when run has returned

	start      sync.Once
	background sync.WaitGroup // attempts to connect, and connections that are being closed

	mu       sync.Mutex
	commands []command
	current  *conn // of the established session
	ended    bool  // no connection is accepted any more
	history  history
	counters counters
}

// New returns a session that has not been started.
func New(conf Config, h Handler) (*Session, error) {
	if err := conf.check(); err != nil {
		return nil, fmt.Errorf("create session with %q: %w", conf.Remote.Addr(), err)
	}
	s := &Session{
		conf: conf, handler: h, incoming: make(chan net.Conn, 1), events: make(chan func()),
		kick: make(chan struct{}, 1), wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	s.dial = conf.dial
	return s, nil
}

// Start registers the session with its listener and connects to the neighbor. It returns at once.
// A session is started once. The error is that of the listener.
func (s *Session) Start() error {
	err := errors.New("it was started or stopped before")
	s.start.Do(func() {
		if err = s.conf.Listener.add(s); err != nil {
			close(s.done)
			return
		}
		go (&fsm{session: s}).run()
	})
	if err != nil {
		return fmt.Errorf("start session with %q: %w", s.conf.Remote.Addr(), err)
	}
	return nil
}

// verb is what a command does.
type verb uint8

const (
	stopSession verb = iota
	resetSession
	disableSession
	enableSession
	connectNow
)

// command is a call of an exported method, which the goroutine of the session executes.
type command struct {
	verb         verb
	notification message.Notification
	reason       string
}

// command queues a command, so that functions of the Handler can call it while the session waits
// for them.
func (s *Session) command(c command) {
	s.mu.Lock()
	s.commands = append(s.commands, c)
	s.mu.Unlock()
	signal(s.kick)
}

// signal makes the receiver of a channel with capacity 1 look again.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // is pending
	}
}

// Stop ends the session with a NOTIFICATION, or without one if its Code is 0, and returns after
// Down has returned and everything is closed. Another call only waits for that.
func (s *Session) Stop(n message.Notification, reason string) {
	s.start.Do(func() { close(s.done) }) // it never ran
	s.command(command{stopSession, n, reason})
	<-s.done
}

// Reset ends the session, if it is up, with a NOTIFICATION, and connects again at once. It does not
// wait for that.
func (s *Session) Reset(n message.Notification, reason string) {
	s.command(command{resetSession, n, reason})
}

// Disable ends the session with a NOTIFICATION and refuses connections until Enable. It does not
// wait for that.
func (s *Session) Disable(n message.Notification, reason string) {
	s.command(command{disableSession, n, reason})
}

// Enable reverts Disable: it connects at once.
func (s *Session) Enable() { s.command(command{verb: enableSession}) }

// Connect connects at once instead of after Config.ConnectRetry, if the session is not up: the
// caller knows that the neighbor is reachable again.
func (s *Session) Connect() { s.command(command{verb: connectNow}) }

// Wake makes the session call Handler.Fill. It does not block.
func (s *Session) Wake() { signal(s.wake) }

// SendRefresh sends a ROUTE-REFRESH, if the session is up and the neighbor supports it. It does not
// block.
func (s *Session) SendRefresh(r message.Refresh) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && s.current.established.RouteRefresh {
		s.current.control = r.Append(s.current.control)
		s.Wake()
	}
}
