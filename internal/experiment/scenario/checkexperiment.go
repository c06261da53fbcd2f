package scenario

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/experiment/result"
)

func (c *checker) experiment(e *Experiment) {
	const path = "experiment"
	if e.Kind != "" && !slices.Contains(kinds, e.Kind) {
		c.Add(path+".kind", "must be one of %s, got %q", strings.Join(kinds, ", "), e.Kind)
		return // the other rules depend on the kind
	}
	if c.knownNode(path+".server", e.Server) {
		if n := c.spec.Nodes[e.Server]; n != nil && n.Ready != nil && !*n.Ready {
			c.Add(path+".server", "node %q has ready: false, but the experiment has to wait for it", e.Server)
		}
		switch n := c.spec.Nodes[e.Server]; {
		case n == nil:
		case e.Kind == KindWeb && n.Site == nil:
			c.Add(path+".server", "node %q serves no pages: give it site", e.Server)
		case e.Kind != KindWeb && n.Serve == nil:
			c.Add(path+".server", "node %q serves nothing: give it serve", e.Server)
		}
	}
	if c.knownNode(path+".client", e.Client) && e.Client == e.Server {
		c.Add(path+".client", "must be another node than the server, got %q", e.Client)
	}
	if e.Trials < 1 {
		c.Add(path+".trials", "must be at least 1, got %d", e.Trials)
	}
	if e.LabTrials < 0 {
		c.Add(path+".lab_trials", "must not be negative, got %d", e.LabTrials)
	}
	c.delivery(path, e)
	c.quick(path+".quick", e)
	if e.Kind == KindRoutes {
		c.routesExperiment(path, e)
	} else {
		c.routesOnly(path, e)
	}
	if e.Kind == KindWeb {
		c.webExperiment(path, e)
	} else {
		c.webOnly(path, e)
	}
}

// delivery checks the cases, traffic, transports, figures and expectations.
func (c *checker) delivery(path string, e *Experiment) {
	c.cases(path+".cases", e.Cases)
	if len(e.Traffic) == 0 {
		c.Add(path+".traffic", "must name at least one kind of traffic")
	}
	for _, name := range slices.Sorted(maps.Keys(e.Traffic)) {
		c.traffic(at(path+".traffic", name), name, e.Traffic[name])
	}
	if len(e.Transports) == 0 {
		c.Add(path+".transports", "must name at least one transport")
	}
	for _, name := range slices.Sorted(maps.Keys(e.Transports)) {
		c.transport(at(path+".transports", name), name, e.Transports[name])
	}
	c.transportSettings(path, e)
	c.eventTimes(path, e)
	c.figures(path, e)
	c.bestOf(path, e)
	if _, ok := e.Transports[e.Baseline]; e.Baseline != "" && !ok {
		c.Add(path+".baseline", "transport %q is not in transports", e.Baseline)
	}
	unique := fault.Seen{}
	for i, x := range e.Expect {
		path := index(path+".expect", i)
		if x.Name == "" {
			c.Add(path+".name", "must say what is expected")
		}
		unique.Check(&c.List, path, "name", x.Name)
		c.expectation(path, e, x)
	}
}

func (c *checker) cases(path string, cases []Case) {
	if len(cases) == 0 {
		c.Add(path, "must have at least one case")
	}
	unique := fault.Seen{}
	for i, k := range cases {
		path := index(path, i)
		if !word.MatchString(k.Name) {
			c.Add(path+".name", wantWord, k.Name)
		}
		unique.Check(&c.List, path, "name", k.Name)
		c.published(path, k)
		for _, link := range slices.Sorted(maps.Keys(k.Links)) {
			where := at(path+".links", link)
			if _, ok := c.spec.Links[link]; !ok {
				c.Add(where, "link %q is not in links", link)
			}
			c.shape(where, k.Links[link])
		}
		if k.Duration < 0 {
			c.Add(path+".duration", "must not be negative, got %s", k.Duration)
		}
		if k.Trials < 0 {
			c.Add(path+".trials", "must not be negative, got %d", k.Trials)
		}
		c.rates(path+".rates", k)
		c.caseRatio(path+".ratio", k.Ratio)
		c.connections(path, k)
		c.parameters(path, k)
		c.events(path, k)
	}
}

// rates checks the rates of a case.
func (c *checker) rates(path string, k Case) {
	for _, name := range slices.Sorted(maps.Keys(k.Rates)) {
		switch t := c.spec.Experiment.Traffic[name]; {
		case t == nil:
			c.Add(at(path, name), "traffic %q is not in traffic", name)
		case t.Rate == 0:
			c.Add(at(path, name), "traffic %q has no rate that it could replace", name)
		case k.Rates[name] <= 0:
			c.Add(at(path, name), "must be > 0, got %s", k.Rates[name])
		}
	}
}

func (c *checker) traffic(path, name string, t *Traffic) {
	if !word.MatchString(name) {
		c.Add(path, "name "+wantWord, name)
	}
	if t == nil {
		c.Add(path, "is empty: must have bytes, or rate and duration")
		return
	}
	if c.spec.Experiment.Kind == KindWeb {
		return // webExperiment checks it
	}
	if t.Bytes < 0 {
		c.Add(path+".bytes", "must not be negative, got %s", t.Bytes)
	}
	if t.Rate < 0 {
		c.Add(path+".rate", "must not be negative, got %s", t.Rate)
	}
	if t.Duration < 0 {
		c.Add(path+".duration", "must not be negative, got %s", t.Duration)
	}
	switch {
	case t.Bytes == 0 && t.Rate == 0 && t.Duration == 0:
		c.Add(path, "must have bytes, or rate and duration")
	case t.Bytes != 0 && t.Rate != 0:
		c.Add(path, "must have either bytes or rate, got both")
	case t.Bytes == 0 && t.Rate == 0:
		c.Add(path+".rate", "must be given with duration, or bytes")
	case t.Rate != 0 && t.Duration == 0:
		c.Add(path+".duration", "must be given with rate")
	}
	c.datagrams(path, t)
	c.objects(path, t)
	if t.Quick <= 0 {
		c.Add(path+".quick", "must be > 0, got %s", t.Quick)
	}
}

func (c *checker) transport(path, name string, t *Transport) {
	if !word.MatchString(name) {
		c.Add(path, "name "+wantWord, name)
	}
	if t == nil {
		c.Add(path, "is empty: must have links")
		return
	}
	if len(t.Links) == 0 {
		c.Add(path+".links", "must name at least one link that a connection can use: no nodes with forwarding lead from server to client, so that none is chosen")
	}
	c.named(path+".links", t.Links)
	if t.Gateway != nil {
		c.gateway(path+".gateway", t)
	}
	if t.Proxies && (t.MPTCP || t.Gateway != nil || t.Via != "") {
		c.Add(path+".proxies", "is for transports without mptcp, gateway and via")
	}
	if t.HTTP3 && (t.MPTCP || t.Proxies || t.Port != 0) {
		c.Add(path+".http3", "is for transports without mptcp, proxies and port")
	}
	if t.Chromium && !t.HTTP3 {
		c.Add(path+".chromium", "is for transports with http3")
	}
	for name, traffic := range c.spec.Experiment.Traffic {
		if t.HTTP3 && traffic != nil && (traffic.Upload || traffic.Datagram != 0) {
			c.Add(path+".http3", "traffic %q is no download", name)
		}
	}
	c.via(path+".via", t)
	c.delivered(path+".delivery", t)
	c.port(path+".port", t)
}

func (c *checker) expectation(path string, e *Experiment, x Expectation) {
	c.expectedMetric(path+".metric", e, x, x.Metric)
	if x.Case != "" && !slices.ContainsFunc(e.Cases, func(k Case) bool { return x.selectsCase(k.Name) }) {
		c.Add(path+".case", "case %q is not in cases", x.Case)
	}
	if _, ok := e.Traffic[x.Traffic]; x.Traffic != "" && !ok {
		c.Add(path+".traffic", "traffic %q is not in traffic", x.Traffic)
	}
	if _, ok := e.Transports[x.Transport]; x.Transport != "" && !ok {
		c.Add(path+".transport", "transport %q is not in transports", x.Transport)
	}
	if x.Stat != "" && !slices.Contains(statNames, x.Stat) {
		c.Add(path+".stat", "must be one of %s, got %q", strings.Join(statNames, ", "), x.Stat)
	}
	if x.Backend != "" && x.Backend != result.BackendLab && x.Backend != result.BackendSim {
		c.Add(path+".backend", "must be %s or %s, got %q", result.BackendLab, result.BackendSim, x.Backend)
	}
	c.relative(path+".relative", e, x)
	if x.published() {
		c.publishedDifference(path, x)
	}
	for _, b := range []struct {
		name  string
		bound *float64
	}{{"at_least", x.AtLeast}, {"at_most", x.AtMost}} {
		if b.bound != nil && (math.IsNaN(*b.bound) || math.IsInf(*b.bound, 0)) {
			c.Add(path+"."+b.name, "must be a finite number, got %v", *b.bound)
		}
	}
	switch {
	case x.AtLeast == nil && x.AtMost == nil:
		c.Add(path, "must have at_least or at_most")
	case x.AtLeast != nil && x.AtMost != nil && *x.AtLeast > *x.AtMost:
		c.Add(path+".at_most", "must be at least at_least (%v), got %v", *x.AtLeast, *x.AtMost)
	}
}

// publishedDifference checks an expectation with a source.
func (c *checker) publishedDifference(path string, x Expectation) {
	if !x.againstCell() {
		c.Add(path+".relative", "must be %sNAME or %sNAME with source, got %q", relativeTransport, relativeCase, x.Relative)
	}
	if x.Stat != "" {
		c.Add(path+".stat", "must not be given with source")
	}
	if m, _ := result.MetricNamed(x.Metric); m.Model {
		c.Add(path+".metric", "%s is an estimate of a model, which is no sample of a test", x.Metric)
	}
	if (x.AtLeast == nil) == (x.AtMost == nil) {
		c.Add(path, "must have either at_least or at_most with source")
	} else if at, _ := x.bound(); !(at > 0) {
		c.Add(path, "must have a bound > 0 with source, got %v", at)
	}
}

func (c *checker) relative(path string, e *Experiment, x Expectation) {
	if x.Relative == "" {
		return
	}
	if other, ok := strings.CutPrefix(x.Relative, relativeTransport); ok {
		if _, known := e.Transports[other]; !known {
			c.Add(path, "transport %q is not in transports", other)
		} else if other == x.Transport {
			c.Add(path, "must be another transport than the expectation's own, got %q", other)
		}
		return
	}
	if other, ok := strings.CutPrefix(x.Relative, relativeCase); ok {
		if !slices.ContainsFunc(e.Cases, func(k Case) bool { return k.Name == other }) {
			c.Add(path, "case %q is not in cases", other)
		} else if other == x.Case {
			c.Add(path, "must be another case than the expectation's own, got %q", other)
		}
		return
	}
	if _, ok := result.MetricNamed(x.Relative); !ok {
		names := result.Select(func(result.Metric) bool { return true })
		c.Add(path, "must be %sNAME, %sNAME or one of %s, got %q%s", relativeTransport, relativeCase, strings.Join(names, ", "), x.Relative,
			fault.Suggest(x.Relative, names))
		return
	}
	if x.Relative == x.Metric {
		c.Add(path, "must be another metric than the expectation's own, got %q", x.Relative)
		return
	}
	c.expectedMetric(path, e, x, x.Relative)
}

// expectedMetric adds a fault for a metric that a selected cell cannot have, because the
// expectation could not hold.
func (c *checker) expectedMetric(path string, e *Experiment, x Expectation, name string) {
	if !result.CheckMetric(&c.List, path, name) {
		return
	}
	m, _ := result.MetricNamed(name)
	if t := e.Transports[x.Transport]; m.MPTCP && t != nil && !t.MPTCP {
		c.Add(path, "%s is for transports with mptcp, and %q has none", name, x.Transport)
	}
	if m.Competition && slices.ContainsFunc(e.Cases, func(k Case) bool { return x.selectsCase(k.Name) && len(k.Connections) == 0 }) {
		c.Add(path, "%s needs connections in each case that is selected", name)
	}
	if slices.Contains(sharesOfOthers, name) && len(e.BestOf) == 0 {
		c.Add(path, "%s needs best_of", name)
	}
	switch {
	case e.Kind == KindRoutes && m.On(result.OnRouteChange), e.Kind == KindWeb && m.On(result.OnPage):
	case !e.Delivers() || !m.On(result.OnDelivery|result.OnChange):
		c.Add(path, "%s is for experiments of kind %s", name, kindOf(m))
	case !m.On(result.OnDelivery) && len(c.spec.Scheduled()) == 0:
		for _, k := range e.Cases {
			if x.selectsCase(k.Name) && len(k.Events) == 0 {
				c.Add(path, "%s needs events, and case %q has none", name, k.Name)
				break
			}
		}
	}
}

// kindOf returns the kind of experiments that measure a metric.
func kindOf(m result.Metric) string {
	switch {
	case m.On(result.OnDelivery | result.OnChange):
		return KindDelivery
	case m.On(result.OnPage):
		return KindWeb
	}
	return KindRoutes
}

func (c *checker) published(path string, k Case) {
	e := c.spec.Experiment
	for i, p := range k.Published {
		where := index(path+".published", i)
		result.CheckMetric(&c.List, where+".metric", p.Metric)
		if _, ok := e.Traffic[p.Traffic]; p.Traffic != "" && !ok {
			c.Add(where+".traffic", "traffic %q is not in traffic", p.Traffic)
		}
		if _, ok := e.Transports[p.Transport]; p.Transport != "" && !ok {
			c.Add(where+".transport", "transport %q is not in transports", p.Transport)
		}
		if !(p.Value > 0) || math.IsInf(p.Value, 0) {
			c.Add(where+".value", "must be > 0, got %v", p.Value)
		}
		if p.Source == "" {
			c.Add(where+".source", "must name the publication")
		}
		for j, other := range k.Published[:i] {
			if p.Metric == other.Metric && (p.Traffic == other.Traffic || p.Traffic == "" || other.Traffic == "") && (p.Transport == other.Transport || p.Transport == "" || other.Transport == "") {
				c.Add(where, "is about the same as %s", index("published", j))
			}
		}
	}
}
