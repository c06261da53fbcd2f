// Package rtr is a client of RPKI caches: it obtains the Validated ROA Payloads (VRPs) that origin
// validation uses (RFC 8210, RFC 6810), over TCP.
//
// It neither validates certificates, which a cache does, nor routes. Router keys are ignored.
package rtr

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp/policy"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// Config is the caches and their intervals.
type Config struct {
	// Caches are the RPKI caches. All are connected; the VRPs are those of the most preferred one
	// that is connected and has sent all of its own, or else of the most preferred one that has
	// any.
	Caches []Cache `yaml:"caches"`
	// Refresh is how long after an update the cache is asked for changes, unless it announces them
	// before. Default: what the cache says (RFC 8210 section 6), 1h for one of version 0.
	// Example: 10m
	Refresh time.Duration `yaml:"refresh,omitempty"`
	// Retry is how long after a failure the cache is asked or connected again. Default: what the
	// cache says; 10s before it has said anything. Example: 10s
	Retry time.Duration `yaml:"retry,omitempty"`
	// Expire is how long the VRPs of a cache that does not answer are used; without any, no route
	// is valid or invalid. Default: what the cache says, 2h for one of version 0.
	// Example: 2h
	Expire time.Duration `yaml:"expire,omitempty"`
}

// Cache is one RPKI cache.
type Cache struct {
	// Address is the cache's address and port; 323 is the usual port (RFC 8210 section 9).
	// Example: "[2001:db8::5]:323"
	Address netip.AddrPort `yaml:"address"`
	// Preference: the cache with the lowest number is preferred, of equal ones the first. Default:
	// 0
	Preference uint8 `yaml:"preference,omitempty"`
}

// The bounds and defaults of intervals (RFC 8210 section 6).
const (
	minInterval = time.Second
	maxRefresh  = 24 * time.Hour
	maxRetry    = 2 * time.Hour
	minExpire   = 10 * time.Minute
	maxExpire   = 48 * time.Hour

	defaultRefresh = time.Hour
	defaultExpire  = 2 * time.Hour
	// defaultRetry is shorter than the 10 minutes of RFC 8210: until the first data has arrived, no
	// route is validated.
	defaultRetry = 10 * time.Second
)

// Check returns all faults of the configuration.
func (c *Config) Check() fault.List {
	var faults fault.List
	if len(c.Caches) == 0 {
		faults.Add("caches", "must name at least one cache")
	}
	seen := fault.Seen{}
	for i, cache := range c.Caches {
		at := fmt.Sprintf("caches[%d]", i)
		if a := cache.Address.Addr(); !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || cache.Address.Port() == 0 {
			faults.Add(at+".address", `must be the address and port of a host, like "[2001:db8::5]:323", got %v`, cache.Address)
		}
		seen.Check(&faults, at, "address", cache.Address)
	}
	check := func(path string, d, least, most time.Duration) {
		if d != 0 && (d < least || d > most) {
			faults.Add(path, "must be from %s to %s, got %s", least, most, d)
		}
	}
	check("refresh", c.Refresh, minInterval, maxRefresh)
	check("retry", c.Retry, minInterval, maxRetry)
	// Lower than the RFC's bound, which is for what a cache says: an operator may prefer no data
	// to old data.
	check("expire", c.Expire, 2*minInterval, maxExpire)
	if c.Refresh != 0 && c.Expire != 0 && c.Expire <= c.Refresh {
		faults.Add("expire", "must be longer than refresh, %s, got %s", c.Refresh, c.Expire)
	}
	return faults
}

// Options are what a Client is made of.
type Options struct {
	Config Config
	// Changed is called when the VRPs have changed, one call at a time; with an empty set if no
	// cache has any.
	Changed func(*policy.VRPs)
	Log     *slog.Logger

	// dial replaces net.Dialer.DialContext in tests.
	dial func(ctx context.Context, address netip.AddrPort) (net.Conn, error)
}

// Client is connected to all caches. It is safe for concurrent use.
type Client struct {
	options Options
	caches  []*cache // most preferred first
	wake    chan struct{}
	mu      sync.Mutex // guards the results of caches
}

// New returns a client that connects in Run.
func New(o Options) (*Client, error) {
	if err := o.Config.Check().Err(); err != nil {
		return nil, err
	}
	if o.dial == nil {
		o.dial = func(ctx context.Context, address netip.AddrPort) (net.Conn, error) {
			return (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, "tcp", address.String())
		}
	}
	c := &Client{options: o, wake: make(chan struct{}, 1)}
	for _, conf := range o.Config.Caches {
		c.caches = append(c.caches, &cache{
			Cache: conf, client: c, version: maxVersion, log: o.Log.With("cache", conf.Address),
			timers: timers{refresh: defaultRefresh, retry: defaultRetry, expire: defaultExpire},
		})
	}
	slices.SortStableFunc(c.caches, func(a, b *cache) int { return cmp.Compare(a.Preference, b.Preference) })
	return c, nil
}

// Run keeps the VRPs up to date until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for _, cache := range c.caches {
		running.Go(func() { cache.run(ctx) })
	}
	var reported *policy.VRPs
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		}
		used, vrps := c.selected()
		if vrps == reported {
			continue
		}
		reported = vrps
		if used == nil {
			c.options.Log.Warn("no rpki cache has data, routes are not validated")
		} else {
			c.options.Log.Info("rpki data changed", "cache", used.Address, "vrps", vrps.Len())
		}
		_ = contain.Do(contain.RPKI, c.options.Log, nil, func() { c.options.Changed(vrps) }) // it is logged
	}
}

// selected returns the cache that is used, and its VRPs; nil if there is none. The VRPs of one that
// is not connected become older.
func (c *Client) selected() (*cache, *policy.VRPs) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, connected := range []bool{true, false} {
		for _, cache := range c.caches {
			if cache.connected == connected && cache.vrps != nil {
				return cache, cache.vrps
			}
		}
	}
	return nil, nil
}

// CacheStatus is one cache in a daemon's /status.
type CacheStatus struct {
	Name string `json:"name"` // address and port
	// Used: the VRPs of this cache are used.
	Used      bool `json:"used"`
	Connected bool `json:"connected"`
	// VRPs is the number of VRPs that the cache has sent.
	VRPs   int    `json:"vrps"`
	Serial uint32 `json:"serial"`
	// Age is the time since the last update in seconds.
	Age int64 `json:"age_seconds"`
	// Reason is why the cache is not connected, or has no data.
	Reason string `json:"reason,omitempty"`
}

// Status returns the state of all caches, most preferred first.
func (c *Client) Status() []CacheStatus {
	used, _ := c.selected()
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]CacheStatus, len(c.caches))
	for i, cache := range c.caches {
		s := CacheStatus{Name: cache.Address.String(), Used: cache == used, Connected: cache.connected, VRPs: cache.vrps.Len(), Reason: cache.reason}
		if cache.vrps != nil {
			s.Serial, s.Age = cache.serial, int64(time.Since(cache.updated)/time.Second)
		}
		all[i] = s
	}
	return all
}
