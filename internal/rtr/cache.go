package rtr

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/policy"
)

const (
	// maxVersion is the version that is tried first (RFC 8210 section 7).
	maxVersion = 1

	connectTimeout = 5 * time.Second
	// answerTimeout is how long a cache may be silent within an answer, and answerLimit how long the
	// whole answer may take: one PDU at a time could go on for ever.
	answerTimeout = time.Minute
	answerLimit   = 10 * time.Minute
	writeTimeout  = 10 * time.Second
	// maxVRPs bounds the memory that a cache can use.
	maxVRPs = 8 << 20
)

// cache is the connection to one cache. Its fields belong to the goroutine of run, and the results
// are guarded by Client.mu beside.
type cache struct {
	Cache
	client *Client
	log    *slog.Logger

	version uint8
	// known: session and the serial number are those of vrps, so that changes since then suffice.
	known   bool
	session uint16
	timers  timers // as configured or as the cache said

	// The results.
	connected bool
	reason    string
	vrps      *policy.VRPs // nil: none, or expired
	serial    uint32
	updated   time.Time // of vrps
}

// intervals returns the intervals; those of the configuration replace the cache's.
func (c *cache) intervals() timers {
	t, conf := c.timers, &c.client.options.Config
	for _, d := range []struct {
		from time.Duration
		to   *time.Duration
	}{{conf.Refresh, &t.refresh}, {conf.Retry, &t.retry}, {conf.Expire, &t.expire}} {
		if d.from != 0 {
			*d.to = d.from
		}
	}
	t.refresh = min(t.refresh, t.expire/2) // before the data is too old
	return t
}

// set changes results and has the client select again.
func (c *cache) set(change func()) {
	c.client.mu.Lock()
	change()
	c.client.mu.Unlock()
	select {
	case c.client.wake <- struct{}{}:
	default:
	}
}

// run connects again and again until ctx ends.
func (c *cache) run(ctx context.Context) {
	for ctx.Err() == nil {
		version, known := c.version, c.known
		err := c.connection(ctx)
		if ctx.Err() != nil {
			return
		}
		if c.version != version || known && !c.known {
			continue // the next attempt asks in another version, or for everything
		}
		if c.reason != err.Error() {
			c.log.Warn("rpki cache not connected", "err", err)
		}
		c.set(func() { c.connected, c.reason = false, err.Error() })
		retry := time.NewTimer(c.intervals().retry)
		expire := c.expiry()
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				waiting = false
			case <-retry.C:
				waiting = false
			case <-expire.C:
				c.expired()
			}
		}
		retry.Stop()
		expire.Stop()
	}
}

// expiry returns a timer that fires when the data is too old; it never fires without data.
func (c *cache) expiry() *time.Timer {
	if c.vrps == nil {
		t := time.NewTimer(time.Hour)
		t.Stop()
		return t
	}
	return time.NewTimer(time.Until(c.updated.Add(c.intervals().expire)))
}

func (c *cache) expired() {
	c.log.Warn("rpki data expired", "age", time.Since(c.updated).Round(time.Second))
	c.flush()
}

// flush forgets the data of the cache.
func (c *cache) flush() {
	c.known = false
	c.set(func() { c.vrps = nil })
}

// otherSession forgets the data of a cache that has restarted, and returns the error that ends the
// connection (RFC 8210 section 5.1).
func (c *cache) otherSession(now uint16) error {
	c.flush()
	return protocolf(codeCorruptData, "session ID changed from %d to %d", c.session, now)
}

// received is a PDU, or the error that ended the reading.
type received struct {
	pdu pdu
	err error
}

// connection opens a connection and works with it until it fails.
func (c *cache) connection(ctx context.Context) error {
	conn, err := c.client.options.dial(ctx, c.Address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer conn.Close()
	pdus := make(chan received, 64)
	go func() {
		r := bufio.NewReaderSize(conn, 1<<16)
		for {
			p, err := readPDU(r)
			select {
			case pdus <- received{p, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	err = c.serve(ctx, conn, pdus)
	var bad *protocolError
	if errors.As(err, &bad) {
		c.known = false
		_ = c.send(conn, errorReport(c.version, bad.code, bad.text)) // the connection ends anyway
	}
	return err
}

func (c *cache) send(conn net.Conn, b []byte) error {
	if err := conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := conn.Write(b)
	return err
}

// serve asks for data and takes it, until the connection ends with an error.
func (c *cache) serve(ctx context.Context, conn net.Conn, pdus <-chan received) error {
	answer := time.NewTimer(answerTimeout) // runs while an answer is expected
	defer answer.Stop()
	refresh := time.NewTimer(0)
	refresh.Stop()
	defer refresh.Stop()
	expire := c.expiry()
	defer func() { expire.Stop() }()
	// negotiated: the cache has answered in our version (RFC 8210 section 7).
	negotiated := false
	// notified: changes were announced while asking, so that it is not sure that the answer has
	// them.
	asking, notified := false, false
	var asked time.Time
	var update *update // within an answer
	ask := func() error {
		asking, notified, asked = true, false, time.Now()
		answer.Reset(answerTimeout)
		if c.known {
			return c.send(conn, serialQuery(c.version, c.session, c.serial))
		}
		return c.send(conn, resetQuery(c.version))
	}
	if err := ask(); err != nil {
		return err
	}
	for {
		var p pdu
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-answer.C:
			if time.Since(asked) >= answerLimit {
				return fmt.Errorf("no complete answer in %s", answerLimit)
			}
			return fmt.Errorf("no answer in %s", answerTimeout)
		case <-expire.C:
			c.expired()
			continue
		case <-refresh.C:
			if !asking {
				if err := ask(); err != nil {
					return err
				}
			}
			continue
		case r := <-pdus:
			if r.err != nil {
				return r.err
			}
			p = r.pdu
		}
		switch {
		case !negotiated && p.typ == typeSerialNotify:
			continue // of whatever version
		case !negotiated && p.version < c.version:
			c.version, c.known = p.version, false
			return fmt.Errorf("the cache has version %d", p.version)
		case p.version != c.version:
			return protocolf(codeUnexpectedVersion, "version %d after %d", p.version, c.version)
		}
		negotiated = true
		if asking {
			answer.Reset(min(answerTimeout, time.Until(asked.Add(answerLimit))))
		}
		switch p.typ {
		case typeSerialNotify:
			if asking {
				notified = true
				continue
			}
			if p.session != c.session {
				return c.otherSession(p.session)
			}
			if p.serial == c.serial {
				continue
			}
			if err := ask(); err != nil {
				return err
			}
		case typeCacheResponse:
			if !asking || update != nil {
				return protocolf(codeInvalidRequest, "Cache Response without a query")
			}
			if c.known && p.session != c.session {
				return c.otherSession(p.session)
			}
			update = newUpdate(c.known, c.vrps)
			c.session = p.session
		case typeIPv4Prefix, typeIPv6Prefix:
			if update == nil {
				return protocolf(codeCorruptData, "prefix outside of a response")
			}
			if err := update.add(p.vrp, p.announce); err != nil {
				return err
			}
		case typeRouterKey:
			if update == nil {
				return protocolf(codeCorruptData, "router key outside of a response")
			}
		case typeEndOfData:
			if update == nil {
				return protocolf(codeCorruptData, "End of Data outside of a response")
			}
			if p.session != c.session {
				return c.otherSession(p.session)
			}
			vrps, err := update.apply()
			if err != nil {
				return err
			}
			update, asking, c.known = nil, false, true
			answer.Stop()
			if c.version > 0 {
				if c.timers = p.timers.bounded(); c.timers != p.timers {
					c.log.Warn("rpki cache has intervals out of bounds", "refresh", p.timers.refresh, "retry", p.timers.retry, "expire", p.timers.expire)
				}
			}
			c.set(func() { c.vrps, c.serial, c.updated, c.connected, c.reason = vrps, p.serial, time.Now(), true, "" })
			refresh.Reset(c.intervals().refresh)
			expire.Stop()
			expire = c.expiry()
			if notified {
				if err := ask(); err != nil {
					return err
				}
			}
		case typeCacheReset:
			if !asking || update != nil || !c.known {
				return protocolf(codeInvalidRequest, "Cache Reset without a Serial Query")
			}
			c.known = false
			if err := ask(); err != nil {
				return err
			}
		case typeErrorReport:
			if p.code != codeNoData {
				c.known = false
			}
			return fmt.Errorf("the cache reports error %d: %q", p.code, p.text)
		}
	}
}

// update is an answer that has not ended yet.
type update struct {
	before *policy.VRPs
	// full: the answer has everything, in list; otherwise only changes.
	full    bool
	list    []policy.VRP
	changes map[policy.VRP]bool // whether it is announced
	most    int                 // limit of what it has, and of the VRPs after it
}

func newUpdate(incremental bool, before *policy.VRPs) *update {
	if incremental {
		return &update{before: before, changes: map[policy.VRP]bool{}, most: maxVRPs}
	}
	return &update{full: true, most: maxVRPs}
}

func (u *update) add(v policy.VRP, announce bool) error {
	if len(u.list)+len(u.changes) >= u.most {
		return u.tooMany()
	}
	if u.full {
		if !announce {
			return protocolf(codeUnknownWithdrawal, "withdrawal of %v, which was not announced", v)
		}
		u.list = append(u.list, v)
		return nil
	}
	switch announced, changed := u.changes[v]; {
	case !changed:
		u.changes[v] = announce
	case announced == announce:
		return repeated(v, announce)
	default: // it is as before
		delete(u.changes, v)
	}
	return nil
}

func (u *update) tooMany() error {
	return protocolf(codeInternal, "more than %d prefixes", u.most)
}

func repeated(v policy.VRP, announce bool) error {
	if announce {
		return protocolf(codeDuplicate, "%v is announced twice", v)
	}
	return protocolf(codeUnknownWithdrawal, "withdrawal of %v, which was not announced", v)
}

// apply returns the VRPs after the update.
func (u *update) apply() (*policy.VRPs, error) {
	if u.full {
		slices.SortFunc(u.list, policy.VRP.Compare)
		for i := range u.list[min(1, len(u.list)):] {
			if u.list[i] == u.list[i+1] {
				return nil, repeated(u.list[i], true)
			}
		}
		return policy.NewVRPs(u.list), nil
	}
	if len(u.changes) == 0 {
		return u.before, nil
	}
	list := make([]policy.VRP, 0, u.before.Len()+len(u.changes))
	for v := range u.before.All() {
		announce, changed := u.changes[v]
		delete(u.changes, v)
		switch {
		case !changed:
			list = append(list, v)
		case announce:
			return nil, repeated(v, true)
		}
	}
	for v, announce := range u.changes {
		if !announce {
			return nil, repeated(v, false)
		}
		list = append(list, v)
	}
	if len(list) > u.most {
		return nil, u.tooMany()
	}
	slices.SortFunc(list, policy.VRP.Compare)
	return policy.NewVRPs(list), nil
}
