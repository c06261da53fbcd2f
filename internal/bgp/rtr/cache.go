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

	"github.com/tabane/tabane/internal/bgp/policy"
	"github.com/tabane/tabane/internal/kernel/contain"
)

const (
	// maxVersion is the version that is tried first (RFC 8210 section 7).
	maxVersion = 1

	connectTimeout = 5 * time.Second
	// answerTimeout is how long a cache may be silent within an answer, and answerLimit how long
	// the whole answer may take: one PDU at a time could go on forever.
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
	// excess are the last intervals of the cache that were out of bounds and logged. Routinator
	// sends a refresh interval of 0 s before each of its validations, which is every ten minutes.
	excess timers

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
		var err error
		if fault := contain.Do(contain.RPKI, c.log, nil, func() { err = c.connection(ctx) }); fault != nil {
			err, c.known, known = fault, false, false // what was received is asked for again, after the pause
		}
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
			var p pdu
			var err error
			if fault := contain.Do(contain.RPKI, c.log, nil, func() { p, err = readPDU(r) }); fault != nil {
				err = fault
			}
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
	q := &query{cache: c, conn: conn, answer: time.NewTimer(answerTimeout), refresh: time.NewTimer(0), expire: c.expiry()}
	q.refresh.Stop()
	defer func() { q.answer.Stop(); q.refresh.Stop(); q.expire.Stop() }()
	if err := q.ask(); err != nil {
		return err
	}
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-q.answer.C:
			if time.Since(q.asked) >= answerLimit {
				return fmt.Errorf("no complete answer in %s", answerLimit)
			}
			return fmt.Errorf("no answer in %s", answerTimeout)
		case <-q.expire.C:
			c.expired()
		case <-q.refresh.C:
			if !q.asking {
				err = q.ask()
			}
		case r := <-pdus:
			if err = r.err; err == nil {
				err = q.take(r.pdu)
			}
		}
		if err != nil {
			return err
		}
	}
}

// query is the state of the queries of one connection.
type query struct {
	*cache
	conn net.Conn
	// answer runs while an answer is expected.
	answer, refresh, expire *time.Timer
	// negotiated: the cache has answered in our version (RFC 8210 section 7).
	negotiated bool
	// notified: changes were announced while asking, so that it is not sure that the answer has
	// them.
	asking, notified bool
	asked            time.Time
	update           *update // within an answer
}

// ask sends a query for changes, or for all data if none is known.
func (q *query) ask() error {
	q.asking, q.notified, q.asked = true, false, time.Now()
	q.answer.Reset(answerTimeout)
	if q.known {
		return q.send(q.conn, serialQuery(q.version, q.session, q.serial))
	}
	return q.send(q.conn, resetQuery(q.version))
}

// take applies a PDU.
func (q *query) take(p pdu) error {
	switch {
	case !q.negotiated && p.typ == typeSerialNotify:
		return nil // of any version
	case !q.negotiated && p.version < q.version:
		q.version, q.known = p.version, false
		return fmt.Errorf("the cache has version %d", p.version)
	case p.version != q.version:
		return protocolf(codeUnexpectedVersion, "version %d after %d", p.version, q.version)
	}
	q.negotiated = true
	if q.asking {
		q.answer.Reset(min(answerTimeout, time.Until(q.asked.Add(answerLimit))))
	}
	switch p.typ {
	case typeSerialNotify:
		switch {
		case q.asking:
			q.notified = true
		case p.session != q.session:
			return q.otherSession(p.session)
		case p.serial != q.serial:
			return q.ask()
		}
	case typeCacheResponse:
		if !q.asking || q.update != nil {
			return protocolf(codeInvalidRequest, "Cache Response without a query")
		}
		if q.known && p.session != q.session {
			return q.otherSession(p.session)
		}
		q.update = newUpdate(q.known, q.vrps)
		q.session = p.session
	case typeIPv4Prefix, typeIPv6Prefix:
		if q.update == nil {
			return protocolf(codeCorruptData, "prefix outside of a response")
		}
		return q.update.add(p.vrp, p.announce)
	case typeRouterKey:
		if q.update == nil {
			return protocolf(codeCorruptData, "router key outside of a response")
		}
	case typeEndOfData:
		return q.complete(p)
	case typeCacheReset:
		if !q.asking || q.update != nil || !q.known {
			return protocolf(codeInvalidRequest, "Cache Reset without a Serial Query")
		}
		q.known = false
		return q.ask()
	case typeErrorReport:
		if p.code != codeNoData {
			q.known = false
		}
		return fmt.Errorf("the cache reports error %d: %q", p.code, p.text)
	}
	return nil
}

// complete applies an answer at its End of Data.
func (q *query) complete(p pdu) error {
	if q.update == nil {
		return protocolf(codeCorruptData, "End of Data outside of a response")
	}
	if p.session != q.session {
		return q.otherSession(p.session)
	}
	vrps, err := q.update.apply()
	if err != nil {
		return err
	}
	q.update, q.asking, q.known = nil, false, true
	q.answer.Stop()
	if q.version > 0 {
		if q.timers = p.timers.bounded(); q.timers != p.timers && q.excess != p.timers {
			q.excess = p.timers
			q.log.Warn("rpki cache has intervals out of bounds", "refresh", p.timers.refresh, "retry", p.timers.retry, "expire", p.timers.expire)
		}
	}
	q.set(func() { q.vrps, q.serial, q.updated, q.connected, q.reason = vrps, p.serial, time.Now(), true, "" })
	q.refresh.Reset(q.intervals().refresh)
	q.expire.Stop()
	q.expire = q.expiry()
	if q.notified {
		return q.ask()
	}
	return nil
}

// update is an answer that has not ended yet.
type update struct {
	before *policy.VRPs
	// full: the answer has everything, in list; otherwise only changes.
	full    bool
	list    []policy.VRP
	changes map[policy.VRP]bool // whether it is announced
	limit   int                 // of what it has, and of the VRPs after it
}

func newUpdate(incremental bool, before *policy.VRPs) *update {
	if incremental {
		return &update{before: before, changes: map[policy.VRP]bool{}, limit: maxVRPs}
	}
	return &update{full: true, limit: maxVRPs}
}

func (u *update) add(v policy.VRP, announce bool) error {
	if len(u.list)+len(u.changes) >= u.limit {
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
	return protocolf(codeInternal, "more than %d prefixes", u.limit)
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
	if len(list) > u.limit {
		return nil, u.tooMany()
	}
	slices.SortFunc(list, policy.VRP.Compare)
	return policy.NewVRPs(list), nil
}
