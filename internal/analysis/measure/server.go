package measure

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
)

// Delivery switches how a server delivers a connection. It is safe for concurrent use.
type Delivery interface {
	// Names returns what it can switch connections to now.
	Names() []string
	// Deliver delivers a connection of this server by one of the names until ctx ends. It returns
	// at once, and is called again to switch.
	Deliver(ctx context.Context, conn net.Conn, name string) error
}

// ServerOptions are the parameters of NewServer.
type ServerOptions struct {
	// Key is the shared key; nil lets everybody measure.
	Key []byte
	// Limits are those of each trial; 0 means the defaults.
	Limits Limits
	// Total bounds the bytes of all trials, 0 means no bound.
	Total unit.Size
	// Turns is how many clients measure at the same time; 0 means 1.
	Turns int
	// Peers returns the egress peers that have paths; nil means none.
	Peers func(context.Context) []Peer
	// Delivery switches connections; nil means that none can be.
	Delivery Delivery
	// Version, Kernel and Congestion describe the server.
	Version, Kernel, Congestion string
	Log                         *slog.Logger
}

const (
	// DefaultBytes is 10 s at 16 Gbit/s, and DefaultTime longer than a switched connection of 5
	// pairs.
	DefaultBytes = 20 * unit.GB
	DefaultTime  = 2 * time.Minute

	// maxSessions bounds the memory that clients can take, and those of one address a share of it.
	maxSessions, maxFromAddress = 256, 32
	// idleSession is how long a session without a request exists, and idlePlace a place in the
	// queue.
	idleSession, idlePlace = 2 * time.Minute, 15 * time.Second
	// waitTurn is how long a request for a turn waits: shorter than middleboxes keep silent
	// connections.
	waitTurn = 5 * time.Second
	// turnGrace is the time beside the transfer: connections, and round-trip times before it.
	turnGrace = 15 * time.Second
	// bodyTime is how long the body of a request may take: it has at most a few KiB.
	bodyTime = 10 * time.Second
	// maxRequest is how long such a body is at most, in bytes.
	maxRequest = 4 << 10
)

// Server answers the requests of clients. It is an http.Handler for Path and the paths below it,
// and for the server of package traffic.
type Server struct {
	o      ServerOptions
	mux    *http.ServeMux
	secret [32]byte
	now    func() time.Time
	// body is bodyTime, except in tests.
	body time.Duration

	mu       sync.Mutex
	sessions map[string]*session
	// queue has the sessions that wait for a turn, in their order, and active those that have one.
	queue, active []*session
	changed       chan struct{} // closed when a turn ends
	sent          int64
}

// session is a client.
type session struct {
	from netip.Addr
	// used is when it made its last request, and ends the end of its turn, which is to take time.
	used, ends time.Time
	time       time.Duration
	// budget is what is left of the turn's bytes.
	budget int64
	// running are the transfers that can be switched.
	running map[*transfer]bool
	count   int // requests that are being served
}

// transfer is a response that is being sent.
type transfer struct {
	conn   net.Conn
	ctx    context.Context //nolint:containedctx // it is that of the request that is being served
	cancel context.CancelFunc
}

// NewServer returns a server.
func NewServer(o ServerOptions) *Server {
	if o.Limits.Bytes == 0 {
		o.Limits.Bytes = DefaultBytes
	}
	if o.Limits.Time == 0 {
		o.Limits.Time = DefaultTime
	}
	o.Turns = max(1, o.Turns)
	s := &Server{o: o, mux: http.NewServeMux(), now: time.Now, body: bodyTime, sessions: map[string]*session{}, changed: make(chan struct{})}
	_, _ = rand.Read(s.secret[:]) // never fails
	s.mux.HandleFunc("GET "+Path, s.hello)
	s.mux.HandleFunc("POST "+Path, s.open)
	s.mux.HandleFunc("DELETE "+Path+"/{session}", s.close)
	s.mux.HandleFunc("POST "+Path+"/{session}/turn", s.turn)
	s.mux.HandleFunc("DELETE "+Path+"/{session}/turn", s.endTurn)
	s.mux.HandleFunc("GET "+Path+"/{session}/ping", s.ping)
	s.mux.HandleFunc("GET "+Path+"/{session}/bytes/{n}", s.bytes)
	s.mux.HandleFunc("GET "+Path+"/{session}/cbr", s.cbr)
	s.mux.HandleFunc("POST "+Path+"/{session}/deliver/{name}", s.deliver)
	return s
}

// Handlers returns what traffic.Options.Also needs.
func (s *Server) Handlers() map[string]http.Handler {
	return map[string]http.Handler{Path: s, Path + "/": s}
}

// ServeHTTP implements http.Handler. Without a deadline, a client without the key could keep a
// connection by a body that does not end. The deadline is for the body alone: an answer may take
// longer.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		c := http.NewResponseController(w)
		if err := c.SetReadDeadline(time.Now().Add(s.body)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
		if err != nil {
			http.Error(w, "the body of the request is too long, or does not arrive", http.StatusBadRequest)
			return
		}
		_ = c.SetReadDeadline(time.Time{}) // as it could be set, it can be taken away
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	s.mux.ServeHTTP(w, r)
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(value) // the client is gone
}

func (s *Server) hello(w http.ResponseWriter, r *http.Request) {
	answer(w, Hello{Protocol: Protocol, Key: s.o.Key != nil, Challenge: s.challenge(clientOf(r), s.now())})
}

// clientOf returns the address of a client.
func clientOf(r *http.Request) netip.Addr {
	at, _ := netip.ParseAddrPort(r.RemoteAddr) // an error gives the zero address
	return at.Addr().Unmap()
}

// challenge returns what a client has to sign. The server need not remember it.
func (s *Server) challenge(from netip.Addr, at time.Time) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(at.Unix()))
	return base64.RawURLEncoding.EncodeToString(append(b, sign(s.secret[:], string(b), from.String())[:macLen]...))
}

// admit checks a request for a session.
func (s *Server) admit(from netip.Addr, o Opening) error {
	if s.o.Key == nil {
		return nil
	}
	b, err := base64.RawURLEncoding.DecodeString(o.Challenge)
	if err != nil || len(b) != challengeLen || !hmac.Equal(b[8:], sign(s.secret[:], string(b[:8]), from.String())[:macLen]) {
		return errors.New("the challenge is not of this server")
	}
	if age := s.now().Sub(time.Unix(int64(binary.BigEndian.Uint64(b)), 0)); age < -challengeLife || age > challengeLife {
		return errors.New("the challenge is too old")
	}
	if !hmac.Equal([]byte(o.Proof), []byte(prove(s.o.Key, o.Challenge))) {
		return errors.New("the key is wrong")
	}
	return nil
}

func (s *Server) open(w http.ResponseWriter, r *http.Request) {
	var o Opening
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, "the request is not JSON", http.StatusBadRequest)
		return
	}
	if err := s.admit(clientOf(r), o); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	id, err := s.add(clientOf(r))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	offer := Offer{Protocol: Protocol, Session: id, Version: s.o.Version, Kernel: s.o.Kernel, Congestion: s.o.Congestion, Limits: s.o.Limits, Peers: []Peer{}, Deliveries: []string{}}
	if s.o.Peers != nil {
		offer.Peers = append(offer.Peers, s.o.Peers(r.Context())...)
	}
	if s.o.Delivery != nil {
		offer.Deliveries = append(offer.Deliveries, s.o.Delivery.Names()...)
	}
	answer(w, offer)
}

// add makes a session and returns its name.
func (s *Server) add(from netip.Addr) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	same := 0
	for _, one := range s.sessions {
		if group(one.from) == group(from) {
			same++
		}
	}
	switch {
	case s.o.Total > 0 && s.sent >= int64(s.o.Total):
		return "", fmt.Errorf("the server has sent the %s that it may send", s.o.Total)
	case len(s.sessions) >= maxSessions:
		return "", fmt.Errorf("the server has %d clients, its limit", len(s.sessions))
	case same >= maxFromAddress:
		return "", fmt.Errorf("the server has %d clients of your address, its limit", same)
	}
	var b [tokenLen]byte
	_, _ = rand.Read(b[:]) // never fails
	id := hex.EncodeToString(b[:])
	s.sessions[id] = &session{from: from, used: s.now(), running: map[*transfer]bool{}}
	return id, nil
}

// group returns the addresses that one client may have: the /64 of an IPv6 address.
func group(a netip.Addr) netip.Prefix {
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // an invalid address has an invalid prefix
	return p
}

// expire removes sessions, places and turns whose time is over. The caller holds the lock.
func (s *Server) expire() {
	now := s.now()
	for id, one := range s.sessions {
		if one.count == 0 && now.Sub(one.used) > idleSession {
			delete(s.sessions, id)
			s.leave(one)
		}
	}
	s.queue = slices.DeleteFunc(s.queue, func(one *session) bool { return one.count == 0 && now.Sub(one.used) > idlePlace })
	for _, one := range slices.Clone(s.active) {
		if now.After(one.ends) {
			s.leave(one)
		}
	}
}

// leave ends the turn of a session and its place in the queue. The caller holds the lock.
func (s *Server) leave(one *session) {
	is := func(other *session) bool { return other == one }
	s.queue = slices.DeleteFunc(s.queue, is)
	if !slices.ContainsFunc(s.active, is) {
		return
	}
	s.active = slices.DeleteFunc(s.active, is)
	for t := range one.running {
		t.cancel()
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// begin returns the session of a request, which the caller releases by done, or answers it.
func (s *Server) begin(w http.ResponseWriter, r *http.Request, needsTurn bool) (one *session, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	one = s.sessions[r.PathValue("session")]
	switch {
	case one == nil:
		http.Error(w, "no such session", http.StatusGone)
		return nil, nil
	case needsTurn && !slices.Contains(s.active, one):
		http.Error(w, "it is not your turn", http.StatusConflict)
		return nil, nil
	}
	one.count++
	one.used = s.now()
	return one, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		one.count--
		one.used = s.now()
	}
}

func (s *Server) close(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := r.PathValue("session")
	if one := s.sessions[id]; one != nil {
		delete(s.sessions, id)
		s.leave(one)
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) turn(w http.ResponseWriter, r *http.Request) {
	one, done := s.begin(w, r, false)
	if one == nil {
		return
	}
	defer done()
	planned, err := time.ParseDuration(r.URL.Query().Get(timeKey))
	if err != nil || planned <= 0 || planned > s.o.Limits.Time {
		http.Error(w, fmt.Sprintf("a trial takes up to %s, got %q", s.o.Limits.Time, printable(r.URL.Query().Get(timeKey))), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	one.time = planned + turnGrace
	s.mu.Unlock()
	timeout := time.NewTimer(waitTurn)
	defer timeout.Stop()
	for {
		turn, changed, next := s.take(one)
		if turn.Granted {
			answer(w, turn)
			return
		}
		// A turn may end without anybody saying so.
		ended := time.NewTimer(next)
		select {
		case <-r.Context().Done():
			ended.Stop()
			return
		case <-timeout.C:
			ended.Stop()
			answer(w, turn)
			return
		case <-changed:
		case <-ended.C:
		}
		ended.Stop()
	}
}

// take gives the session a turn if it is the first in the queue and there is one. next is when one
// ends.
func (s *Server) take(one *session) (t Turn, changed <-chan struct{}, next time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	now := s.now()
	if slices.Contains(s.active, one) {
		s.leave(one) // its next turn
	}
	if !slices.Contains(s.queue, one) {
		s.queue = append(s.queue, one)
	}
	t.Ahead = slices.Index(s.queue, one)
	if t.Ahead == 0 && len(s.active) < s.o.Turns {
		s.queue = s.queue[1:]
		s.active = append(s.active, one)
		one.ends, one.budget = now.Add(one.time), int64(s.o.Limits.Bytes)
		return Turn{Granted: true}, nil, 0
	}
	for _, a := range s.queue[:t.Ahead] {
		t.Wait += a.time
	}
	next = time.Second
	for _, a := range s.active {
		left := a.ends.Sub(now)
		t.Wait += left
		next = min(next, max(time.Millisecond, left))
	}
	t.Ahead += len(s.active)
	return t, s.changed, next
}

func (s *Server) endTurn(w http.ResponseWriter, r *http.Request) {
	one, done := s.begin(w, r, false)
	if one == nil {
		return
	}
	defer done()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave(one)
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) ping(w http.ResponseWriter, r *http.Request) {
	if one, done := s.begin(w, r, true); one != nil {
		defer done()
		w.WriteHeader(http.StatusNoContent)
	}
}

func (s *Server) bytes(w http.ResponseWriter, r *http.Request) {
	n, err := unit.ParseSize(r.PathValue("n"))
	if err == nil && (n < 0 || n > s.o.Limits.Bytes) {
		err = fmt.Errorf("a trial has at most %s, got %s", s.o.Limits.Bytes, n)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.send(w, r, func(w http.ResponseWriter, r *http.Request) { traffic.SendBytes(w, r, n) })
}

func (s *Server) cbr(w http.ResponseWriter, r *http.Request) {
	s.send(w, r, func(w http.ResponseWriter, r *http.Request) {
		// The delivery is not a parameter of the schedule.
		u := *r.URL
		q := u.Query()
		q.Del(deliverKey)
		u.RawQuery = q.Encode()
		r.URL = &u
		traffic.SendCBR(w, r)
	})
}

// deliverKey is the parameter with the name of a delivery, and timeKey that with the time of a
// trial.
const (
	deliverKey = "deliver"
	timeKey    = "time"
)

// send sends content within the turn's limits.
func (s *Server) send(w http.ResponseWriter, r *http.Request, content http.HandlerFunc) {
	one, done := s.begin(w, r, true)
	if one == nil {
		return
	}
	defer done()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	t := &transfer{conn: traffic.Connection(r), ctx: ctx, cancel: cancel}
	if name := r.URL.Query().Get(deliverKey); name != "" {
		if err := s.deliverTo(t, name); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	s.mu.Lock()
	one.running[t] = true
	ends := one.ends
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(one.running, t)
		s.mu.Unlock()
	}()
	// Without a deadline, a client that does not read would keep its connection.
	if err := http.NewResponseController(w).SetWriteDeadline(ends); err != nil && !errors.Is(err, http.ErrNotSupported) {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	content(&limited{ResponseWriter: w, server: s, session: one, ctx: ctx}, r.WithContext(ctx))
}

// errLimit ends a response at a limit.
var errLimit = errors.New("the limit is reached")

// limited is a response within the limits of a turn and of the server.
type limited struct {
	http.ResponseWriter
	server  *Server
	session *session
	ctx     context.Context //nolint:containedctx // it is that of the response
}

// Unwrap is for http.ResponseController.
func (l *limited) Unwrap() http.ResponseWriter { return l.ResponseWriter }

func (l *limited) Write(b []byte) (int, error) {
	s := l.server
	s.mu.Lock()
	n := min(int64(len(b)), l.session.budget)
	if s.o.Total > 0 {
		n = min(n, int64(s.o.Total)-s.sent)
	}
	l.session.budget -= n
	s.sent += n
	s.mu.Unlock()
	if err := l.ctx.Err(); err != nil {
		return 0, err
	}
	written, err := l.ResponseWriter.Write(b[:n])
	if err == nil && written < len(b) {
		err = errLimit
	}
	return written, err
}

// deliver switches the transfers of a session that are running.
func (s *Server) deliver(w http.ResponseWriter, r *http.Request) {
	one, done := s.begin(w, r, true)
	if one == nil {
		return
	}
	defer done()
	s.mu.Lock()
	running := slices.Collect(maps.Keys(one.running))
	s.mu.Unlock()
	if len(running) == 0 {
		http.Error(w, "nothing is being sent: the transfer has ended, or reached the limit of the server", http.StatusConflict)
		return
	}
	for _, t := range running {
		if err := s.deliverTo(t, r.PathValue("name")); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) deliverTo(t *transfer, name string) error {
	if s.o.Delivery == nil || !slices.Contains(s.o.Delivery.Names(), name) {
		return fmt.Errorf("the server cannot deliver by %q", printable(name))
	}
	if t.conn == nil {
		return errors.New("the connection is not known")
	}
	return s.o.Delivery.Deliver(t.ctx, t.conn, name)
}
