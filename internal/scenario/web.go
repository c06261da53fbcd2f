package scenario

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/page"
	"github.com/tabane/tabane/internal/site"
	"github.com/tabane/tabane/internal/unit"
)

// Web is what a player does in a browser, in an experiment of KindWeb.
type Web struct {
	// Service is the service of the server's site: map, where the player finds a place, or shop,
	// where the player puts an item into the cart.
	Service page.Service `yaml:"service"`
	// Heavy selects the variant of the service with larger images.
	Heavy bool `yaml:"heavy,omitempty"`
	// HTTP is the version of HTTP, over TLS: 1.1 or 2. Default: 1.1.
	HTTP string `yaml:"http,omitempty"`
	// Think bounds the sum of the think times of a task: longer ones are shortened in proportion.
	// Default: as drawn from the seed. Example: 6s
	Think time.Duration `yaml:"think,omitempty"`
	// Seed is that of the task of the first trial; each further trial has the next one. All
	// transports and cases have the same tasks.
	Seed uint64 `yaml:"seed,omitempty"`
}

// The versions of HTTP.
const (
	HTTP1 = "1.1"
	HTTP2 = "2"
)

var httpVersions = []string{HTTP1, HTTP2}

// WebForm is the form in which a case serves pages.
type WebForm struct {
	// HTTP is the version of HTTP, over TLS: 1.1 or 2. Default: that of the traffic.
	HTTP string `yaml:"http,omitempty"`
	// Heavy selects the variant of the service with larger images.
	Heavy bool `yaml:"heavy,omitempty"`
}

// ThinkTimes returns the factor that multiplies think times of that sum, in a quick pass or not.
func (t *Traffic) ThinkTimes(sum time.Duration, quick bool) float64 {
	bound := t.Web.Think
	if quick && (bound == 0 || t.Quick < bound) {
		bound = t.Quick
	}
	if bound == 0 || sum <= bound {
		return 1
	}
	return float64(bound) / float64(sum)
}

// webExperiment checks the keys of an experiment of KindWeb, and those that it must not have.
func (c *checker) webExperiment(path string, e *Experiment) {
	for i, k := range e.Cases {
		path := index(path+".cases", i)
		c.load(path+".load", e, k)
		c.version(path+".web.http", k.Web.HTTP)
		c.notIn(path, map[string]bool{
			"settings": k.Settings != (Settings{}), "events": len(k.Events) > 0, "connections": len(k.Connections) > 0, "remaining": len(k.Remaining) > 0, "duration": k.Duration != 0, "rates": len(k.Rates) > 0,
		})
	}
	for _, name := range sortedKeys(e.Traffic) {
		if t := e.Traffic[name]; t != nil {
			c.web(at(path+".traffic", name), t)
		}
	}
	for _, name := range sortedKeys(e.Transports) {
		t, path := e.Transports[name], at(path+".transports", name)
		if t == nil {
			continue
		}
		c.onlyCongestion(path, t.Settings)
		c.notIn(path, map[string]bool{"via": t.Via != "", "gateway": t.Gateway != nil, "model": t.Model != nil})
	}
}

// notIn adds a fault for each key that is set, which an experiment of KindWeb cannot have.
func (c *checker) notIn(path string, set map[string]bool) {
	for _, key := range sortedKeys(set) {
		if set[key] {
			c.Add(path+"."+key, "cannot be given in an experiment of kind %s", KindWeb)
		}
	}
}

// onlyCongestion adds a fault for settings other than the congestion control, which a listening socket
// has for its connections alone.
func (c *checker) onlyCongestion(path string, s Settings) {
	s.Congestion, s.Pace = "", nil
	if s != (Settings{}) {
		c.Add(path, "must have no settings but congestion and pace in an experiment of kind %s", KindWeb)
	}
}

// web checks a traffic of pages.
func (c *checker) web(path string, t *Traffic) {
	if t.Web == nil {
		c.Add(path+".web", "must be given in an experiment of kind %s", KindWeb)
		return
	}
	if t.Duration <= 0 {
		c.Add(path+".duration", "must be > 0, the longest time of a task, got %s", t.Duration)
	}
	if t.Quick <= 0 {
		c.Add(path+".quick", "must be > 0, the longest sum of think times in a quick pass, got %s", t.Quick)
	}
	c.notIn(path, map[string]bool{
		"bytes": t.Bytes != 0, "rate": t.Rate != 0, "live": t.Live, "datagram": t.Datagram != 0, "objects": t.Objects != 0, "new_connections": t.NewConnections,
		"upload": t.Upload, "event_at": t.EventAt != 0,
	})
	path += ".web"
	if !slices.Contains(page.Services(), t.Web.Service) {
		c.Add(path+".service", "must be one of %v, got %q", page.Services(), t.Web.Service)
	}
	c.version(path+".http", t.Web.HTTP)
	if t.Web.Think < 0 {
		c.Add(path+".think", "must not be negative, got %s", t.Web.Think)
	}
	if t.Web.Seed > math.MaxInt64 {
		c.Add(path+".seed", "must be at most %d, got %d", math.MaxInt64, t.Web.Seed)
	}
}

// version checks a version of HTTP, which may be missing.
func (c *checker) version(path, http string) {
	if http != "" && !slices.Contains(httpVersions, http) {
		c.Add(path, "must be one of %s, got %q", strings.Join(httpVersions, ", "), http)
	}
}

// maxLoad is the largest load of a link, as a share of its rate: visits have headers and bursts.
const maxLoad = 0.9

// load checks the load of a case.
func (c *checker) load(path string, e *Experiment, k Case) {
	switch {
	case !(k.Load >= 0 && k.Load <= maxLoad):
		c.Add(path, "must be from 0 to %g, got %v", maxLoad, k.Load)
	case k.Load > 0 && len(c.spec.LoadsIn(k)) == 0:
		c.Add(path, "needs a link with a rate between server and client, and a listener without certificate in the server's site")
	}
}

// Load is what visits of other users request over a link.
type Load struct {
	Link string
	Rate unit.Bandwidth
	// URL is that of the site at the server's end of the link.
	URL string
}

// LoadsIn returns the loads of a case of an experiment of KindWeb, one for each link between the server
// and the client that has a rate.
func (s *Spec) LoadsIn(k Case) []Load {
	e := s.Experiment
	server := s.Nodes[e.Server]
	if k.Load == 0 || server == nil || server.Site == nil {
		return nil
	}
	plain := slices.IndexFunc(server.Site.Listen, func(l site.Listen) bool { return l.Certificate == "" })
	if plain < 0 {
		return nil
	}
	var all []Load
	for _, name := range sortedKeys(s.Links) {
		rate := s.ShapeIn(k, name).Rate
		if s.Links[name] == nil || rate == 0 {
			continue
		}
		var address netip.Addr
		client := false
		for _, end := range s.Links[name].Ends {
			client = client || end.Node == e.Client
			if end.Node == e.Server && len(end.Addresses) > 0 {
				address = end.Addresses[0].Addr()
			}
		}
		if client && address.IsValid() {
			at := netip.AddrPortFrom(address, server.Site.Listen[plain].Address.Port())
			all = append(all, Load{name, unit.Bandwidth(k.Load * float64(rate)), "http://" + at.String()})
		}
	}
	return all
}

// webOnly adds a fault for each key that only an experiment of KindWeb can have.
func (c *checker) webOnly(path string, e *Experiment) {
	for i, k := range e.Cases {
		if k.Load != 0 {
			c.Add(index(path+".cases", i)+".load", "is for experiments of kind %s", KindWeb)
		}
		if k.Web != (WebForm{}) {
			c.Add(index(path+".cases", i)+".web", "is for experiments of kind %s", KindWeb)
		}
	}
	for _, name := range sortedKeys(e.Traffic) {
		if t := e.Traffic[name]; t != nil && t.Web != nil {
			c.Add(at(path+".traffic", name)+".web", "is for experiments of kind %s", KindWeb)
		}
	}
}
