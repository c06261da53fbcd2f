// Package share exchanges what the servers of a site measured in client networks, through a Valkey
// or Redis server that they have in common.
//
// It does not decide what the records of others mean: belief does. A network is a key, a hash with
// one field for each of a few servers, so that no server replaces what another one measured.
package share

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/tabane/tabane/internal/epe/belief"
)

const (
	// defaultPort is that of Valkey and Redis, mostDatabase bounds the number of a database.
	defaultPort  = "6379"
	mostDatabase = 1 << 16
	// mostServers bounds the servers that have a record of a network, and are read.
	mostServers = 8
	// keepFor is how long a network is kept after it was last written.
	keepFor = 7 * 24 * time.Hour
)

// Options say where the store is.
type Options struct {
	// Address is the host and the port.
	Address string
	// TLS is nil without TLS.
	TLS            *tls.Config
	User, Password string
	Database       int
	// Site is what the servers have in common that share, Server the name of this one among them.
	Site, Server string
}

// schemes are those of the URLs of stores, and whether they are with TLS.
var schemes = map[string]bool{"valkey": false, "redis": false, "valkeys": true, "rediss": true}

// Parse returns the options of a URL such as valkey://USER:PASSWORD@HOST:PORT/DATABASE. Errors do
// not contain the URL, which may have a password.
func Parse(text string) (Options, error) {
	u, err := url.Parse(text)
	if err != nil {
		return Options{}, errors.New("is not a URL such as valkey://host:6379")
	}
	secure, known := schemes[u.Scheme]
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	o := Options{Address: net.JoinHostPort(u.Hostname(), port)}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return Options{}, fmt.Errorf("must have a port from 1 to 65535, got %q", port)
	}
	switch {
	case !known || u.Opaque != "":
		return Options{}, errors.New("must begin with valkey://, redis://, or with TLS valkeys:// or rediss://")
	case !isHost(u.Hostname()):
		return Options{}, errors.New("must name a host, as valkey://host:6379 or valkey://[2001:db8::1]:6379")
	case u.RawQuery != "" || u.Fragment != "":
		return Options{}, errors.New("must end after the host, or the number of a database")
	}
	if secure {
		o.TLS = &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12}
	}
	o.User = u.User.Username()
	o.Password, _ = u.User.Password()
	if path := strings.Trim(u.Path, "/"); path != "" {
		if o.Database, err = strconv.Atoi(path); err != nil || o.Database < 0 || o.Database > mostDatabase {
			return Options{}, fmt.Errorf("must end in the number of a database, got %q", path)
		}
	}
	return o, nil
}

// isHost reports whether the host of a URL is a name or an address. url.Parse accepts unmatched
// brackets and any colons in a name.
func isHost(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || host != "" && !strings.ContainsAny(host, ":[]")
}

// Client exchanges records with a store. It is not safe for concurrent use.
type Client struct {
	o    Options
	conn redis.Conn // nil: none
	wire *guard
}

// New returns a client, which connects when it is used.
func New(o Options) *Client { return &Client{o: o} }

// Result is what an exchange brought.
type Result struct {
	// Records are those of other servers, of the networks that have some.
	Records map[netip.Prefix][]belief.Shared
	// Invalid is the number of records that were ignored, Fault what is wrong with the first one.
	Invalid int
	Fault   error
	// Refused is why the store did not take or give records, nil if it did.
	Refused error
}

// Exchange replaces the records of this server, and reads those of others. Without any it asks
// whether the store answers. It ends with ctx, which has a deadline.
func (c *Client) Exchange(ctx context.Context, x belief.Exchange) (r Result, err error) {
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if c.conn == nil {
		if err := c.dial(ctx); err != nil {
			return r, fmt.Errorf("connect: %w", err)
		}
	}
	defer c.wire.during(ctx)()
	r.Records = map[netip.Prefix][]belief.Shared{}
	if len(x.Measured)+len(x.Asked) == 0 {
		if err := c.send([]any{"PING"}); err != nil {
			return r, err
		}
		_, err := c.receive(&r)
		return r, err
	}
	crowds, err := c.write(x.Measured, &r)
	if err == nil {
		err = c.read(x.Asked, &r)
	}
	if err == nil {
		err = c.thin(crowds, &r)
	}
	return r, err
}

// Close closes the connection.
func (c *Client) Close() {
	if c.conn != nil {
		_ = c.conn.Close() // nothing is left to be sent
		c.conn = nil
	}
}

// dial connects, and authenticates.
func (c *Client) dial(ctx context.Context) error {
	done := func() {}
	defer func() { done() }()
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if c.o.TLS != nil {
			secure := tls.Client(conn, c.o.TLS)
			if err := secure.HandshakeContext(ctx); err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			conn = secure
		}
		c.wire = &guard{Conn: conn}
		done = c.wire.during(ctx)
		return c.wire, nil
	}
	options := []redis.DialOption{redis.DialContextFunc(dial), redis.DialDatabase(c.o.Database)}
	if c.o.Password != "" {
		options = append(options, redis.DialUsername(c.o.User), redis.DialPassword(c.o.Password))
	}
	conn, err := redis.DialContext(ctx, "tcp", c.o.Address, options...)
	if err == nil {
		c.conn = conn
	}
	return err
}

func (c *Client) key(p netip.Prefix) string { return "tabane:" + c.o.Site + ":" + p.String() }

// send sends commands without waiting for replies, in one write if they are few.
func (c *Client) send(commands ...[]any) error {
	for _, one := range commands {
		if err := c.conn.Send(one[0].(string), one[1:]...); err != nil {
			return err
		}
	}
	return c.conn.Flush()
}

// crowd is a network of which more servers than mostServers have a record.
type crowd struct {
	key     string
	surplus int64
}

// write replaces the records of this server, and returns the networks with too many.
func (c *Client) write(measured []belief.Shared, r *Result) (crowds []crowd, err error) {
	for i := range measured {
		s := &measured[i]
		text, err := s.Encode()
		if err != nil {
			return nil, err
		}
		key := c.key(s.Prefix)
		change := []any{"HSET", key, c.o.Server, text}
		if len(s.Modes) == 0 {
			change = []any{"HDEL", key, c.o.Server}
		}
		if err := c.send(change, []any{"EXPIRE", key, int(keepFor / time.Second)}, []any{"HLEN", key}); err != nil {
			return nil, err
		}
	}
	for i := range measured {
		var length any
		for range 3 { // commands; the last one is HLEN
			if length, err = c.receive(r); err != nil {
				return nil, err
			}
		}
		if n, ok := length.(int64); ok && n > mostServers {
			crowds = append(crowds, crowd{c.key(measured[i].Prefix), min(n-mostServers, mostServers)})
		}
	}
	return crowds, nil
}

// receive returns a reply, nil if the store refused the command.
func (c *Client) receive(r *Result) (any, error) {
	reply, err := c.conn.Receive()
	var refused redis.Error
	if !errors.As(err, &refused) {
		return reply, err
	}
	if strings.HasPrefix(string(refused), "WRONGTYPE") { // another program has this key
		r.invalid(refused)
	} else if r.Refused == nil {
		r.Refused = refused
	}
	return nil, nil
}

func (r *Result) invalid(err error) {
	if r.Invalid++; r.Fault == nil {
		r.Fault = err
	}
}

// read reads the records of other servers.
func (c *Client) read(asked []netip.Prefix, r *Result) error {
	var commands [][]any
	for _, p := range asked {
		commands = append(commands, []any{"HRANDFIELD", c.key(p), mostServers, "WITHVALUES"})
	}
	if err := c.send(commands...); err != nil {
		return err
	}
	now := time.Now()
	for _, p := range asked {
		reply, err := c.receive(r)
		if err != nil {
			return err
		}
		list, _ := reply.([]any)
		for ; len(list) > 1; list = list[2:] {
			server, _ := list[0].([]byte)
			text, _ := list[1].([]byte)
			if string(server) == c.o.Server {
				continue
			}
			s, err := belief.DecodeShared(now, p, text)
			switch {
			case err == nil:
				r.Records[p] = append(r.Records[p], s)
			case !errors.Is(err, belief.ErrForgotten):
				r.invalid(fmt.Errorf("record of server %.64q for %s: %w", server, p, err))
			}
		}
	}
	return nil
}

// thin removes records of any other servers where there are too many.
func (c *Client) thin(crowds []crowd, r *Result) error {
	for _, one := range crowds {
		if err := c.send([]any{"HRANDFIELD", one.key, one.surplus}); err != nil {
			return err
		}
	}
	removed := 0
	for _, one := range crowds {
		reply, err := c.receive(r)
		if err != nil {
			return err
		}
		fields, _ := reply.([]any)
		for _, f := range fields {
			if name, _ := f.([]byte); string(name) != c.o.Server {
				if err := c.send([]any{"HDEL", one.key, name}); err != nil {
					return err
				}
				removed++
			}
		}
	}
	for range removed {
		if _, err := c.receive(r); err != nil {
			return err
		}
	}
	return nil
}
