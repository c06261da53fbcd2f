package traffic

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/quality"
)

// Datagrams are the counts of a stream of numbered datagrams. Received includes Duplicates, which
// had arrived before. Reordered arrived after one with a higher number (RFC 4737), Behind is by how
// many numbers at most.
type Datagrams struct {
	Sent       uint64 `json:"sent"`
	Received   uint64 `json:"received"`
	Duplicates uint64 `json:"duplicates"`
	Reordered  uint64 `json:"reordered"`
	Behind     uint64 `json:"behind"`
	// LeastDelay and DelayP95 are of the time from sending to the first arrival, by the clocks of
	// both hosts: their difference is right whatever these show. 0 where the payload is less than
	// StampedDatagram.
	LeastDelay time.Duration `json:"least_delay_ns,omitempty"`
	DelayP95   time.Duration `json:"delay_p95_ns,omitempty"`
}

// Bounds of the payload of a numbered datagram in bytes: it begins with its number, 8 bytes, and
// from StampedDatagram on with the time when it was sent, in as many.
const (
	MinDatagram     = 8
	StampedDatagram = 16
	MaxDatagram     = 65507
)

const (
	// grace is how long a receiver waits for further datagrams.
	grace = 2 * time.Second
	// maxDatagrams bounds the numbers of a stream.
	maxDatagrams = 1 << 32
	// maxDelays bounds the delays that are kept: those of every second, third, ... datagram of a
	// longer stream.
	maxDelays = 1 << 17
	// receiveBuffer is the socket's buffer: the program may be late, which is no loss of the
	// network.
	receiveBuffer = 8 << 20
)

// stream is a constant bit rate of numbered datagrams. They are due one after the other, whatever
// the schedule's chunk is.
type stream struct {
	schedule
	size int
	// after is how long after the request the first one is sent.
	after time.Duration
}

// count is the number of datagrams.
func (s stream) count() uint64 { return uint64(s.total()) / uint64(s.size) }

// parseStream parses the parameters of a request for datagrams; port is 0 if there is none.
func parseStream(query string) (s stream, port uint16, err error) {
	var values url.Values
	if s.schedule, values, err = parseSchedule(query, "size", "port", "after"); err != nil {
		return s, 0, err
	}
	if s.size, err = strconv.Atoi(values.Get("size")); err != nil || s.size < MinDatagram || s.size > MaxDatagram {
		return s, 0, fmt.Errorf("size must be %d to %d bytes, got %q", MinDatagram, MaxDatagram, values.Get("size"))
	}
	if n := s.count(); n == 0 || n > maxDatagrams {
		return s, 0, fmt.Errorf("%s for %s are %d datagrams of %d bytes, want 1 to %d", s.rate, s.duration, n, s.size, uint64(maxDatagrams))
	}
	if values.Has("after") {
		if s.after, err = time.ParseDuration(values.Get("after")); err != nil || s.after < 0 || s.after > maxDuration {
			return s, 0, fmt.Errorf("after must be a duration of 0 to %s, got %q", maxDuration, values.Get("after"))
		}
	}
	if values.Has("port") {
		n, err := strconv.ParseUint(values.Get("port"), 10, 16)
		if err != nil || n == 0 {
			return s, 0, fmt.Errorf("port must be 1 to 65535, got %q", values.Get("port"))
		}
		port = uint16(n)
	}
	return s, port, nil
}

// streamOf returns the URL of the server's datagrams for one of a constant bit rate, and the
// stream.
func (o FetchOptions) streamOf(target *url.URL, more url.Values) (*url.URL, stream, error) {
	if target.Path != "/cbr" {
		return nil, stream{}, fmt.Errorf("datagrams need a URL like http://server/cbr?rate=6Mbit/s&duration=30s, got path %q", target.Path)
	}
	query := target.Query()
	query.Set("size", strconv.Itoa(o.Datagram))
	if o.After > 0 {
		query.Set("after", o.After.String())
	}
	u := *target
	u.Path, u.RawQuery = "/datagrams", query.Encode()
	s, _, err := parseStream(u.RawQuery)
	for name, v := range more {
		query[name] = v
	}
	u.RawQuery = query.Encode()
	return &u, s, err
}

// send sends the stream on a connected socket. A datagram that the host cannot send, because a
// queue is full or there is no route, is lost like one in the network.
func (s stream) send(ctx context.Context, conn *net.UDPConn, count func(bytes int)) (sent uint64, err error) {
	b := make([]byte, s.size)
	copy(b, pattern())
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	start := time.Now()
	for n := range s.count() {
		if wait := s.rate.TimeFor(unit.Size(n)*unit.Size(s.size)) - time.Since(start); wait > 0 {
			timer.Reset(wait)
			select {
			case <-ctx.Done():
				return n, ctx.Err()
			case <-timer.C:
			}
		} else if ctx.Err() != nil {
			return n, ctx.Err()
		}
		binary.BigEndian.PutUint64(b, n)
		if s.size >= StampedDatagram {
			binary.BigEndian.PutUint64(b[8:], uint64(time.Now().UnixNano()))
		}
		if _, err := conn.Write(b); err != nil && !lostHere(err) {
			return n, err
		}
		if count != nil {
			count(len(b))
		}
	}
	return s.count(), nil
}

// lostHere reports whether an error of sending is the loss of a datagram.
func lostHere(err error) bool {
	return slices.ContainsFunc([]error{unix.ENOBUFS, unix.EAGAIN, unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH},
		func(e error) bool { return errors.Is(err, e) })
}

// arrivals are what has arrived of a stream.
type arrivals struct {
	quality.Sequence
	delays []float64 // in seconds
}

// collect counts the arrivals of the stream from one address until all have arrived, or until ended
// has been closed and none has arrived for grace, or ctx ends.
func (s stream) collect(ctx context.Context, sock *net.UDPConn, from netip.Addr, ended <-chan struct{}, m *meter) (arrivals, error) {
	var (
		seen arrivals
		last atomic.Int64 // of the meter's time
	)
	every := s.count()/maxDelays + 1
	stop := context.AfterFunc(ctx, func() { _ = sock.SetReadDeadline(time.Now()) })
	defer stop()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-ended:
		case <-over:
			return
		}
		last.Store(max(last.Load(), int64(m.now())))
		_ = sock.SetReadDeadline(time.Now().Add(grace))
	}()
	b := make([]byte, MaxDatagram)
	for {
		n, at, err := sock.ReadFromUDPAddrPort(b)
		switch {
		case ctx.Err() != nil:
			return seen, context.Cause(ctx)
		case errors.Is(err, os.ErrDeadlineExceeded):
			quiet := m.now() - time.Duration(last.Load())
			if quiet >= grace {
				return seen, nil
			}
			_ = sock.SetReadDeadline(time.Now().Add(grace - quiet))
			continue
		case err != nil:
			return seen, err
		}
		if at.Addr().Unmap() != from || n != s.size {
			continue
		}
		number := binary.BigEndian.Uint64(b)
		if number >= s.count() {
			continue
		}
		if seen.Add(number) {
			m.count(n, 0)
			if s.size >= StampedDatagram && number%every == 0 {
				sent := int64(binary.BigEndian.Uint64(b[8:]))
				seen.delays = append(seen.delays, time.Duration(time.Now().UnixNano()-sent).Seconds())
			}
		}
		last.Store(int64(m.now()))
		if seen.Unique() == s.count() {
			return seen, nil
		}
	}
}

// counts returns the counts of a stream.
func counts(sent uint64, seen arrivals) *Datagrams {
	d := &Datagrams{Sent: sent, Received: seen.Received, Duplicates: seen.Duplicates, Reordered: seen.Reordered, Behind: seen.Behind}
	if p95, err := stat.Quantile(0.95, seen.delays); err == nil {
		d.LeastDelay, d.DelayP95 = seconds(slices.Min(seen.delays)), seconds(p95)
	}
	return d
}

func seconds(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }

// listenDatagrams opens a socket for datagrams to the local address of a connection, in the network
// namespace of the calling thread.
func listenDatagrams(local net.Addr) (*net.UDPConn, error) {
	sock, err := net.ListenUDP("udp", &net.UDPAddr{IP: local.(*net.TCPAddr).IP, Zone: local.(*net.TCPAddr).Zone})
	if err != nil {
		return nil, err
	}
	if raw, err := sock.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			// Without privileges the kernel's bound applies.
			if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
			}
		})
	}
	return sock, nil
}

// dialDatagrams opens a socket that sends from the local address of a connection to a port of its
// peer.
func dialDatagrams(conn net.Conn, port uint16) (*net.UDPConn, error) {
	local, remote := conn.LocalAddr().(*net.TCPAddr), conn.RemoteAddr().(*net.TCPAddr)
	return net.DialUDP("udp", &net.UDPAddr{IP: local.IP, Zone: local.Zone}, &net.UDPAddr{IP: remote.IP, Zone: remote.Zone, Port: int(port)})
}

// remoteAddr returns the address of a connection's peer.
func remoteAddr(conn net.Conn) netip.Addr {
	return conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

// receiveDatagrams requests a stream and counts its arrival.
func (o FetchOptions) receiveDatagrams(ctx context.Context, conn *meteredConn, target *url.URL, m *meter) (Report, error) {
	sock, err := listenDatagrams(conn.LocalAddr())
	if err != nil {
		return Report{}, err
	}
	defer sock.Close()
	port := strconv.Itoa(sock.LocalAddr().(*net.UDPAddr).Port)
	u, s, err := o.streamOf(target, url.Values{"port": {port}})
	if err != nil {
		return Report{}, err
	}
	response, end, err := o.request(ctx, conn, http.MethodGet, u.String())
	if err != nil {
		return m.report(end), err
	}
	defer response.Body.Close()
	if o.Accepted != nil {
		m.exclusively(o.Accepted)
	}
	// The rest of the response says that all were sent. It may be late, or lost with the path.
	ended, answered := make(chan struct{}), make(chan error, 1)
	over := sync.OnceFunc(func() { close(ended) })
	defer time.AfterFunc(s.after+s.duration, over).Stop()
	go func() {
		var sent Datagrams
		answered <- json.NewDecoder(io.LimitReader(response.Body, maxComplaint)).Decode(&sent)
		over()
	}()
	seen, err := s.collect(ctx, sock, remoteAddr(conn), ended, m)
	if err == nil {
		select {
		case err = <-answered:
		default:
		}
	}
	r := m.report(m.last)
	r.Datagrams = counts(s.count(), seen)
	return r, err
}

// uploadDatagrams sends a stream and returns the server's report.
func (o FetchOptions) uploadDatagrams(ctx context.Context, conn *meteredConn, target *url.URL, m *meter) (Report, error) {
	u, s, err := o.streamOf(target, nil)
	if err != nil {
		return Report{}, err
	}
	response, end, err := o.request(ctx, conn, http.MethodPut, u.String())
	if err != nil {
		return m.report(end), err
	}
	defer response.Body.Close()
	port, err := strconv.ParseUint(response.Header.Get(portHeader), 10, 16)
	if err != nil || port == 0 {
		return Report{}, fmt.Errorf("server responds with header %s %q, want a port", portHeader, response.Header.Get(portHeader))
	}
	sock, err := dialDatagrams(conn, uint16(port))
	if err != nil {
		return Report{}, err
	}
	defer sock.Close()
	if _, err := s.send(ctx, sock, func(bytes int) { m.count(bytes, 0) }); err != nil {
		return Report{}, err
	}
	return decodeReport(response)
}

// Connection returns the connection of a request to a Server.
func Connection(r *http.Request) net.Conn {
	conn, _ := r.Context().Value(connectionKey{}).(net.Conn)
	return conn
}

type connectionKey struct{}

// serveDatagrams sends a stream to a port of the client, whose address its connection proves.
func serveDatagrams(w http.ResponseWriter, r *http.Request) {
	s, port, err := parseStream(r.URL.RawQuery)
	if err == nil && port == 0 {
		err = errors.New(`parameter "port" is missing; want the client's port for datagrams`)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	sock, err := dialDatagrams(Connection(r), port)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer sock.Close()
	w.Header().Set("Content-Type", "application/json")
	if http.NewResponseController(w).Flush() != nil {
		return // the client is gone
	}
	select {
	case <-r.Context().Done():
		return
	case <-time.After(s.after):
	}
	sent, err := s.send(r.Context(), sock, nil)
	if err != nil {
		return // a response without counts is an error to the client
	}
	_ = json.NewEncoder(w).Encode(Datagrams{Sent: sent})
}

// receiveDatagrams expects a stream from the client and responds with a Report of its arrival.
func receiveDatagrams(w http.ResponseWriter, r *http.Request) {
	s, _, err := parseStream(r.URL.RawQuery)
	m, _, bad := measures(r)
	if err = errors.Join(err, bad); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	conn := Connection(r)
	sock, err := listenDatagrams(conn.LocalAddr())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer sock.Close()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set(portHeader, strconv.Itoa(sock.LocalAddr().(*net.UDPAddr).Port))
	if http.NewResponseController(w).Flush() != nil {
		return // the client is gone
	}
	ended := make(chan struct{})
	timer := time.AfterFunc(s.duration, func() { close(ended) })
	defer timer.Stop()
	seen, err := s.collect(r.Context(), sock, remoteAddr(conn), ended, m)
	if err != nil {
		return
	}
	report := m.report(m.last)
	report.Datagrams = counts(s.count(), seen)
	_ = json.NewEncoder(w).Encode(report)
}
