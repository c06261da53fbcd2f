package scenario

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/study/content"
	"github.com/tabane/tabane/internal/study/httpd"
)

// Web is what a player does in a browser, in an experiment of KindWeb.
type Web struct {
	// Service is the service of the server's site: map, where the player finds a place, or shop,
	// where the player puts an item into the cart.
	Service content.Service `yaml:"service"`
	// Heavy selects the variant of the service with larger images.
	Heavy bool `yaml:"heavy,omitempty"`
	// HTTP is the version of HTTP, over TLS: 1.1 or 2. Default: 1.1.
	HTTP string `yaml:"http,omitempty"`
	// Think bounds the sum of the think times of a task: longer ones are shortened in proportion.
	// Default: as drawn from the seed. Example: 6s
	Think time.Duration `yaml:"think,omitempty"`
	// Sessions is how many tasks a trial plays at the same time, each in a browser context of its
	// own. What is measured of a page is the mean over them. Default: 1. Example: 3
	Sessions int `yaml:"sessions,omitempty"`
	// Seed is that of the first task of the first trial; each further task has the next one. All
	// transports and cases have the same tasks.
	Seed uint64 `yaml:"seed,omitempty"`
}

// MaxSessions bounds the sessions of a trial.
const MaxSessions = 64

// Tasks returns the seeds of the tasks of a trial, one for each session.
func (w *Web) Tasks(trial int) []uint64 {
	seeds := make([]uint64, max(1, w.Sessions))
	for i := range seeds {
		seeds[i] = w.Seed + uint64(trial*len(seeds)+i)
	}
	return seeds
}

// WithSessions returns the scenario with that many sessions in each trial of pages.
func (s *Spec) WithSessions(n int) *Spec {
	spec, e := *s, *s.Experiment
	spec.Experiment = &e
	e.Traffic = maps.Clone(e.Traffic)
	for name, t := range e.Traffic {
		own, web := *t, *t.Web
		web.Sessions = n
		own.Web = &web
		e.Traffic[name] = &own
	}
	return &spec
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

// Visitors is where the visits of other users come from.
type Visitors struct {
	// Node is the node that they come from. Example: visitors
	Node string `yaml:"node"`
	// Sites are the addresses that are visited, by the link that leads there: each is of a node
	// with a site. Example: {path1: "2001:db8:1:3::1"}
	Sites map[string]netip.Addr `yaml:"sites"`
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
	c.visitors(path+".visitors", e.Visitors)
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

// onlyCongestion adds a fault for settings other than those of the congestion control, which a
// listening socket has for its connections alone.
func (c *checker) onlyCongestion(path string, s Settings) {
	s.Congestion, s.Pace, s.Lowat = "", nil, nil
	if s != (Settings{}) {
		c.Add(path, "must have no settings but congestion, pace and lowat in an experiment of kind %s", KindWeb)
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
		"bytes": t.Bytes != 0, "rate": t.Rate != 0, "live": t.Live, "datagram": t.Datagram != 0, "objects": t.Objects != 0, "new_connections": t.NewConnections, "beside": t.Beside != 0,
		"upload": t.Upload, "event_at": t.EventAt != 0,
	})
	path += ".web"
	if !slices.Contains(content.Services(), t.Web.Service) {
		c.Add(path+".service", "must be one of %v, got %q", content.Services(), t.Web.Service)
	}
	c.version(path+".http", t.Web.HTTP)
	if t.Web.Think < 0 {
		c.Add(path+".think", "must not be negative, got %s", t.Web.Think)
	}
	if t.Web.Sessions < 0 || t.Web.Sessions > MaxSessions {
		c.Add(path+".sessions", "must be from 0 to %d, got %d", MaxSessions, t.Web.Sessions)
	}
	if t.Web.Seed > math.MaxInt64 {
		c.Add(path+".seed", "must be at most %d, got %d", int64(math.MaxInt64), t.Web.Seed)
	}
}

// version checks a version of HTTP, which may be missing.
func (c *checker) version(path, http string) {
	if http != "" && !slices.Contains(httpVersions, http) {
		c.Add(path, "must be one of %s, got %q", strings.Join(httpVersions, ", "), http)
	}
}

// maxLoad is the largest load of a link, as a share of its rate. Visits count without headers, so
// that they request more than the link carries.
const maxLoad = 0.95

// load checks the load of a case.
func (c *checker) load(path string, e *Experiment, k Case) {
	switch {
	case !(k.Load >= 0 && k.Load <= maxLoad):
		c.Add(path, "must be from 0 to %g, got %v", maxLoad, k.Load)
	case k.Load > 0 && e.Visitors == nil && len(c.spec.LoadsIn(k)) == 0:
		c.Add(path, "needs a link with a rate between server and client, and a listener without certificate in the server's site")
	case k.Load > 0 && e.Visitors != nil && len(c.spec.LoadsIn(k)) < len(e.Visitors.Sites):
		c.Add(path, "needs a rate of each link of visitors.sites")
	}
}

// visitors checks where a load comes from.
func (c *checker) visitors(path string, v *Visitors) {
	if v == nil {
		return
	}
	c.knownNode(path+".node", v.Node)
	if len(v.Sites) == 0 {
		c.Add(path+".sites", "must name at least one link")
	}
	for _, link := range sortedKeys(v.Sites) {
		if c.spec.Links[link] == nil {
			c.Add(at(path+".sites", link), "link %q is not in links", link)
		}
		if _, _, ok := c.spec.plainSite(v.Sites[link]); !ok {
			c.Add(at(path+".sites", link), "must be an address of a node with a site that has a listener without certificate, got %s", v.Sites[link])
		}
	}
}

// Load is what visits of other users request over a link.
type Load struct {
	// Node is where they come from.
	Node string
	Link string
	Rate unit.Bandwidth
	// URL is that of the site, Seed its seed.
	URL  string
	Seed uint64
}

// LoadsIn returns the loads of a case of an experiment of KindWeb, one for each link that has a
// rate: those of Visitors, or those between the server and the client.
func (s *Spec) LoadsIn(k Case) []Load {
	e := s.Experiment
	if k.Load == 0 {
		return nil
	}
	from, sites := e.Client, map[string]netip.Addr{}
	if e.Visitors != nil {
		from, sites = e.Visitors.Node, e.Visitors.Sites
	} else {
		for name, l := range s.Links {
			if address, ok := l.between(e.Server, e.Client); ok {
				sites[name] = address
			}
		}
	}
	var all []Load
	for _, name := range sortedKeys(sites) {
		rate := s.ShapeIn(k, name).Rate
		port, seed, ok := s.plainSite(sites[name])
		if rate > 0 && ok {
			url := "http://" + netip.AddrPortFrom(sites[name], port).String()
			all = append(all, Load{from, name, unit.Bandwidth(k.Load * float64(rate)), url, seed})
		}
	}
	return all
}

// between returns the address of a node on a link that it shares with another one.
func (l *Link) between(node, other string) (address netip.Addr, ok bool) {
	if l == nil {
		return address, false
	}
	shared := false
	for _, end := range l.Ends {
		shared = shared || end.Node == other
		if end.Node == node && len(end.Addresses) > 0 {
			address = end.Addresses[0].Addr()
		}
	}
	return address, shared && address.IsValid()
}

// plainSite returns the port of the first listener without certificate of the site at an address,
// and the seed of the site.
func (s *Spec) plainSite(address netip.Addr) (port uint16, seed uint64, ok bool) {
	for _, l := range s.Links {
		if l == nil {
			continue
		}
		for _, end := range l.Ends {
			n := s.Nodes[end.Node]
			if n == nil || n.Site == nil || !slices.ContainsFunc(end.Addresses, func(p netip.Prefix) bool { return p.Addr() == address }) {
				continue
			}
			if i := slices.IndexFunc(n.Site.Listen, func(l httpd.Listen) bool { return l.Certificate == "" }); i >= 0 {
				return n.Site.Listen[i].Address.Port(), n.Site.Seed, true
			}
		}
	}
	return 0, 0, false
}

// webOnly adds a fault for each key that only an experiment of KindWeb can have.
func (c *checker) webOnly(path string, e *Experiment) {
	if e.Visitors != nil {
		c.Add(path+".visitors", "is for experiments of kind %s", KindWeb)
	}
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
