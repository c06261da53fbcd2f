// Package belief holds what is believed of client networks: how much better or worse each mode of
// delivery is for each of them, and decides which mode a network has and which one is tried.
//
// It decides by values alone and knows neither routes nor sockets. A mode that cannot be used, or
// that made no progress, is left at once, whatever is believed of it. Times are those of the wall
// clock, which may step.
package belief

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/tabane/tabane/internal/base/hashtable"
)

// Mode is a mode of delivery as in a configuration, such as "single transit-a".
type Mode string

// Best is the mode that all others are compared with.
const Best Mode = "best"

const (
	// Bulk is the number of bytes from which a connection counts: shorter ones measure slow start.
	Bulk = 1 << 20

	// MaxModes bounds the modes of a network, maxName the name of one in bytes.
	MaxModes = 16
	maxName  = 128

	// Standard deviations of ln(goodput of a mode / goodput of Best): of a network nothing is known
	// of, of one in an AS with others, and of one among any others.
	priorSD, originSD, allSD = 0.3, 0.08, 0.2
	// The noise of a pair of measurements in one connection: at the start, and its bounds.
	startNoise, leastNoise, mostNoise = 0.08, 0.02, 0.5
	// noiseGain is the gain of the noise's estimate.
	noiseGain = 0.1
	// outlierSDs bounds the effect of a measurement, in standard deviations of what was expected.
	// What is outside it is measured again at once; each one that is so too says that there is a
	// change, and adds outlierAddedSD. None says how much measurements scatter.
	outlierSDs, outlierAddedSD = 2.5, 0.3
	// mostLn bounds what a measurement can be: 20 times better or worse.
	mostLn = 3
	// What a standard deviation grows by.
	driftPerConnection, driftPerDay = 0.01, 0.1
	// mostSD bounds a standard deviation.
	mostSD = 0.5

	// A network changes to a mode that is better by leastGain, and by confidenceSDs standard
	// deviations; for the next dwellConnections bulk connections only to one that is better by
	// leastGainInDwell. Gains are differences of ln(goodput).
	leastGain, leastGainInDwell, confidenceSDs = 0.02, 0.05, 0.7
	dwellConnections                           = 20
	// A mode is tried if it never was, or may be better by leastHope at its mean plus optimismSDs
	// standard deviations. Otherwise the one that was tried longest ago is, with every tryEvery-th
	// bulk connection: what it brings may have changed. It has precedence once it was not tried for
	// that many connections for each mode, or one as good as the network's would be tried always.
	optimismSDs, leastHope = 1.5, 0.01
	tryEvery               = 10
	neverTried             = 2 * mostLn // more than any hope
	// mostLoss is the share of what was brought without trials that trials may have lost before the
	// next one.
	mostLoss = 0.01

	// A mode that made no progress rests for leastRest, and twice as long each time, to mostRest.
	leastRest, mostRest = 10 * time.Second, 10 * time.Minute
	// Bulk connections are slower than usual by slowFactor, slowInARow of them in a row, before the
	// mode is doubted.
	slowFactor, slowInARow = 2, 2

	// What one connection can have achieved at most: 1 PB, at 10 Tbit/s, with round trips of a
	// minute.
	mostBytes, mostGoodput = 1e15, 10e12 / 8
	mostRTT                = time.Minute

	// forgetAge is the age at which what is stored of a network no longer counts.
	forgetAge = 7 * 24 * time.Hour
	// maxSecondChances bounds the networks that are looked at to find one to remove.
	maxSecondChances = 8
)

// Options are the parameters of a Table.
type Options struct {
	// Start is the mode of networks that nothing is known of, if it can be used.
	Start Mode
	// Explore is the share of a network's bulk bytes that may be carried in other modes than its
	// own to compare them; 0: none.
	Explore float64
	// Networks is the number of networks that are kept.
	Networks int
}

// Table is what is believed of all networks. It is not safe for concurrent use.
type Table struct {
	options  Options
	networks hashtable.Prefixes[network]
	// oldest and latest are the ends of the list of networks in the order in which they were seen.
	oldest, latest place
	modes          hashtable.Interner[Mode]
	origins        map[uint32]*peers
	all            peers
	changed        bool // since the last call of ClearChanged
	evicted        uint64
	// exchanges are with other servers.
	exchanges exchanges
	history   history
}

// A place is that of a network in the table, plus 1; 0: none.
type place uint32

// A modeID is the number of a mode in the table.
type modeID uint32

// bestID is that of Best, the first one.
const bestID modeID = 1

// network is what is believed of a client network. There may be 100,000.
type network struct {
	at, older, later place
	mode             modeID
	reason           unique.Handle[string]
	since            instant
	seen             instant // the last bulk connection or measurement
	aged             instant // until when age has added what time adds; 0: never
	arms             []arm
	// covariance is that of the means of arms, below its diagonal and on it, row by row.
	covariance []float32
	// brought is of arms in which a connection ended: in most networks, none or one.
	brought []achieved
	// noise is the standard deviation of a pair of measurements, apartNoise that of a connection
	// compared with others.
	noise, apartNoise float64
	// bulk are the bytes of bulk connections that have ended, tried those in other modes than the
	// network's, and lost what these would have been more in its mode.
	bulk, tried, lost float64
	// level is the usual ln goodput in the mode, low how many bulk connections in a row were far
	// below it.
	level float64
	low   int32
	// sinceTrial and sinceChange count bulk connections.
	sinceTrial, sinceChange int32
	origin                  uint32
	// measured is when something was measured here, asked when what others measured was asked for,
	// in Unix seconds, 0: never. begins: what others measured decides where it begins.
	measured, asked seconds
	begins          bool
}

// seconds is a time in Unix seconds, to the year 2106.
type seconds uint32

// secondsAfter returns the first second that is not before a time.
func secondsAfter(t time.Time) seconds {
	return seconds(min(max(t.Add(time.Second-1).Unix(), 0), math.MaxUint32))
}

func (s seconds) time() time.Time { return time.Unix(int64(s), 0) }

// instant is a time in Unix milliseconds: a third of the memory of a time.Time.
type instant int64

func instantOf(t time.Time) instant { return instant(t.UnixMilli()) }

func (i instant) time() time.Time { return time.UnixMilli(int64(i)).UTC() }

// arm is what is believed of a mode in a network. It has no pointer, and takes 24 bytes.
type arm struct {
	mode modeID
	// mean is of ln(goodput / goodput of Best).
	mean float32
	// rest is until when the mode rests, because it made no progress, strikes times in a row.
	rest   seconds
	trials int32
	// untried counts bulk connections since the last trial.
	untried uint32
	// assumed: what is believed of its difference to Best is from other servers.
	assumed   bool
	strikes   uint8
	surprises uint8
	// futile counts trials in a row that measured nothing.
	futile uint8
}

// achieved is what connections of a network achieved in the mode of an arm.
type achieved struct {
	arm int
	Brought
}

// Brought is what connections of a network achieved in a mode.
type Brought struct {
	Connections uint64 `json:"connections"`
	Bytes       uint64 `json:"bytes"`
	// Goodput is the mean of bulk connections while they had something to send, in bytes/s.
	Goodput float64 `json:"goodput_bytes_per_second"`
	// MinRTT is the least round-trip time, RTT the mean of the smoothed ones.
	MinRTT time.Duration `json:"min_rtt_ns"`
	RTT    time.Duration `json:"rtt_ns"`
	// Sent and Retransmitted count segments.
	Sent          uint64 `json:"segments"`
	Retransmitted uint64 `json:"retransmitted"`
	// Limited counts bulk connections by what limited them.
	Limited Limited `json:"limited_by"`
}

// achieved is what connections achieved in the mode of an arm; nil if none ended.
func (n *network) achieved(i int) *Brought {
	if k := slices.IndexFunc(n.brought, func(b achieved) bool { return b.arm == i }); k >= 0 {
		return &n.brought[k].Brought
	}
	return nil
}

// total is achieved as a value.
func (n *network) total(i int) Brought {
	if b := n.achieved(i); b != nil {
		return *b
	}
	return Brought{}
}

// Limited counts connections by what limited them.
type Limited struct {
	Path        uint32 `json:"path"`
	Application uint32 `json:"application"`
	Window      uint32 `json:"window"`
}

// add counts a connection, and returns how many there are.
func (l *Limited) add(by Limit) (all uint64) {
	*[...]*uint32{&l.Path, &l.Application, &l.Window}[by]++
	return uint64(l.Path) + uint64(l.Application) + uint64(l.Window)
}

// Limit is what limited a connection most of its time.
type Limit uint8

// The limits.
const (
	ByPath Limit = iota
	ByApplication
	ByWindow // the client's receive window, or the send buffer
	Limits
)

func (l Limit) String() string {
	if l < Limits {
		return [...]string{"path", "application", "window"}[l]
	}
	return fmt.Sprintf("limit %d", uint8(l))
}

// Outcome is what a connection achieved.
type Outcome struct {
	Bytes uint64
	// Counted are those that counted as bytes of objects before, while it went on.
	Counted uint64
	// Goodput is in bytes/s while there was something to send; 0: not known.
	Goodput             float64
	MinRTT, RTT         time.Duration // 0: not known
	Sent, Retransmitted uint32        // segments
	Limit               Limit
}

// New returns a table without networks.
func New(o Options) *Table {
	t := &Table{options: o, origins: map[uint32]*peers{}}
	t.modes.Use(Best)
	return t
}

// find returns a network; nil if nothing is known of it.
func (t *Table) find(prefix netip.Prefix) *network {
	if r, ok := t.networks.Find(prefix); ok {
		return t.networks.Value(r)
	}
	return nil
}

func (t *Table) network(at place) *network { return t.networks.Value(hashtable.Ref(at - 1)) }

func (t *Table) prefix(n *network) netip.Prefix {
	return t.networks.Key(hashtable.Ref(n.at - 1)).Netip()
}

func (t *Table) mode(m modeID) Mode { return t.modes.Value(uint32(m)) }

// setMode replaces a mode, whose number is in use as long as it is anywhere.
func (t *Table) setMode(at *modeID, m Mode) {
	old := *at
	*at = modeID(t.modes.Use(m))
	t.modes.Release(uint32(old))
}

// Len is the number of networks, Evicted how many were removed for want of room.
func (t *Table) Len() int { return t.networks.Len() }

// Evicted is documented with Len.
func (t *Table) Evicted() uint64 { return t.evicted }

// Explore is Options.Explore.
func (t *Table) Explore() float64 { return t.options.Explore }

// SetExplore replaces Options.Explore.
func (t *Table) SetExplore(share float64) { t.options.Explore = share }

// Mode returns the mode of a network among those that can be used now, which are not none. A
// network whose mode is not among them, or rests, changes at once.
func (t *Table) Mode(now time.Time, prefix netip.Prefix, origin uint32, able []Mode) Mode {
	n := t.find(prefix)
	if n == nil {
		mode, _ := t.start(origin, able)
		return mode
	}
	if n.origin != origin {
		t.move(n, origin)
		t.touch()
	}
	t.consider(now, n, able)
	return t.mode(n.mode)
}

// start returns the mode of a network that nothing is known of, and why.
func (t *Table) start(origin uint32, able []Mode) (Mode, string) {
	mode, why := able[0], "nothing is known yet"
	if slices.Contains(able, t.options.Start) {
		mode = t.options.Start
	}
	best, of := t.prior(origin, mode)
	for _, m := range able {
		b, from := t.prior(origin, m)
		if from != "" && b.mean > best.mean+leastGain {
			mode, best, of = m, b, from
		}
	}
	if of != "" {
		why = "best in " + of
	}
	return mode, why
}

// at returns a network, which it adds.
func (t *Table) at(now time.Time, prefix netip.Prefix, origin uint32, mode Mode) *network {
	n := t.find(prefix)
	if n == nil {
		if t.Len() >= max(t.options.Networks, 1) {
			t.evict()
		}
		r, _ := t.networks.Add(prefix)
		n = t.networks.Value(r)
		*n = network{at: place(r + 1), origin: origin, since: instantOf(now), noise: startNoise, apartNoise: startApartNoise, sinceChange: dwellConnections}
		t.setMode(&n.mode, mode)
		_, why := t.start(origin, []Mode{mode})
		n.reason = unique.Make(why)
		t.link(n)
	}
	t.see(n, now)
	return n
}

// see records that a network has connections.
func (t *Table) see(n *network, now time.Time) {
	if n.at != t.latest {
		t.unlink(n)
		t.link(n)
	}
	t.age(n, now)
	t.ask(n, now)
	n.seen = instantOf(now)
	t.touch()
}

// evict removes the oldest network, or of some of the oldest the one that brought least. Those that
// stay count for half the next time.
func (t *Table) evict() {
	var least *network
	for range maxSecondChances {
		n := t.network(t.oldest)
		if least == nil || n.bulk < least.bulk {
			least = n
		}
		n.bulk, n.tried, n.lost = n.bulk/2, n.tried/2, n.lost/2
		t.unlink(n)
		t.link(n)
	}
	t.remove(least)
	t.evicted++
}

func (t *Table) remove(n *network) {
	t.unlink(n)
	t.exchanges.forget(t.prefix(n))
	t.releaseArms(n)
	t.modes.Release(uint32(n.mode))
	t.networks.Remove(hashtable.Ref(n.at - 1))
}

// releaseArms ends the use of the modes of arms, which are to be replaced.
func (t *Table) releaseArms(n *network) {
	for _, a := range n.arms {
		t.modes.Release(uint32(a.mode))
	}
}

// link makes a network the latest.
func (t *Table) link(n *network) {
	if n.older, n.later = t.latest, 0; n.older == 0 {
		t.oldest = n.at
	} else {
		t.network(n.older).later = n.at
	}
	t.latest = n.at
}

// unlink takes a network out of the order.
func (t *Table) unlink(n *network) {
	if n.older == 0 {
		t.oldest = n.later
	} else {
		t.network(n.older).later = n.later
	}
	if n.later == 0 {
		t.latest = n.older
	} else {
		t.network(n.later).older = n.older
	}
}

func (t *Table) touch() { t.changed = true }

// age adds what time adds to the uncertainty of what is believed.
func (t *Table) age(n *network, now time.Time) {
	if n.aged == 0 || instantOf(now) < n.aged { // the clock may have been set back
		n.aged = instantOf(now)
	}
	days := min(now.Sub(n.aged.time()).Hours()/24, 100)
	if days < 1./24 {
		return
	}
	n.aged = instantOf(now)
	for i := range n.arms {
		n.widen(i, driftPerDay*math.Sqrt(days))
	}
}

// cell returns the covariance of two arms.
func (n *network) cell(i, j int) *float32 {
	if i < j {
		i, j = j, i
	}
	return &n.covariance[i*(i+1)/2+j]
}

func (n *network) covarianceOf(i, j int) float64 { return float64(*n.cell(i, j)) }

// variance is that of the difference of two arms.
func (n *network) variance(i, j int) float64 {
	return max(n.covarianceOf(i, i)-2*n.covarianceOf(i, j)+n.covarianceOf(j, j), 0)
}

// gain is how much better an arm is than another one, as the difference of their means.
func (n *network) gain(i, than int) float64 {
	return float64(n.arms[i].mean) - float64(n.arms[than].mean)
}

// deviation is the standard deviation of the difference of two arms.
func (n *network) deviation(i, j int) float64 { return math.Sqrt(n.variance(i, j)) }

// widen adds to the standard deviation of what is believed. Best is what the others are compared
// with.
func (n *network) widen(i int, sd float64) {
	if v := n.covarianceOf(i, i); n.arms[i].mode != bestID {
		*n.cell(i, i) = float32(min(v+sd*sd, max(v, mostSD*mostSD)))
	}
}

// armOf returns the number of a mode; -1 if there is no arm of it.
func (t *Table) armOf(n *network, m Mode) int {
	id, ok := t.modes.Find(m)
	if !ok {
		return -1
	}
	return slices.IndexFunc(n.arms, func(a arm) bool { return a.mode == modeID(id) })
}

// arm returns the number of a mode, of which others are believed at first; -1 if there are too many
// modes.
func (t *Table) arm(n *network, m Mode) int {
	i := t.armOf(n, m)
	if i >= 0 {
		return i
	}
	if len(n.arms) == MaxModes || !m.valid() {
		return -1
	}
	n.arms = append(n.arms, arm{})
	n.covariance = append(n.covariance, make([]float32, len(n.arms))...)
	t.begin(n, len(n.arms)-1, m)
	return len(n.arms) - 1
}

// begin has an arm be that of a mode of which others are believed.
func (t *Table) begin(n *network, i int, m Mode) {
	b, _ := t.prior(n.origin, m)
	was := n.arms[i].mode
	n.arms[i] = arm{mode: modeID(t.modes.Use(m))}
	t.modes.Release(uint32(was))
	n.brought = slices.DeleteFunc(n.brought, func(b achieved) bool { return b.arm == i })
	n.assume(i, b)
}

// assume has a mode be believed to be as others say.
func (n *network) assume(i int, b prior) {
	n.arms[i].mean, n.arms[i].assumed = float32(b.mean), false
	for k := range n.arms {
		*n.cell(i, k) = 0
	}
	*n.cell(i, i) = float32(b.sd * b.sd)
}

func (m Mode) valid() bool {
	return m != "" && len(m) <= maxName && !strings.ContainsFunc(string(m), func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffd })
}

// left is for how long the mode rests.
func (a *arm) left(now time.Time) time.Duration {
	return a.rest.time().Sub(now)
}

func (a *arm) rests(now time.Time) bool {
	left := a.left(now)
	return left > 0 && left < mostRest+time.Second // else the clock was set back
}

// consider changes the mode of a network if it must be left, or another one is better.
func (t *Table) consider(now time.Time, n *network, able []Mode) {
	if len(n.arms) < len(able) {
		// As many as there are: there may be 100,000 networks.
		n.arms = append(make([]arm, 0, min(len(able), MaxModes)), n.arms...)
	}
	for _, m := range able {
		if t.arm(n, m) >= 0 || !m.valid() {
			continue
		}
		if i := slices.IndexFunc(n.arms, func(a arm) bool { return a.mode != n.mode && !slices.Contains(able, t.mode(a.mode)) }); i >= 0 {
			t.begin(n, i, m)
		}
	}
	usable := func(i int) bool { return slices.Contains(able, t.mode(n.arms[i].mode)) && !n.arms[i].rests(now) }
	at := t.arm(n, t.mode(n.mode))
	leave := at < 0 || !usable(at)
	if n.begins && !leave {
		n.begins = false
		t.beginAt(now, n, at, usable)
		at = t.arm(n, t.mode(n.mode))
	}
	var best *arm
	for i := range n.arms {
		a := &n.arms[i]
		if !usable(i) || i == at {
			continue
		}
		if !leave {
			gain, least := n.gain(i, at), leastGain
			if n.sinceChange < dwellConnections {
				least = leastGainInDwell
			}
			// What other networks believe decides where a network starts, not where it goes.
			if a.trials == 0 && a.mode != bestID || gain <= least || gain <= confidenceSDs*n.deviation(i, at) {
				continue
			}
		}
		if best == nil || a.mean > best.mean {
			best = a
		}
	}
	switch {
	case best == nil && leave && n.mode != bestID && slices.Contains(able, Best):
		t.change(now, n, Best, "no other mode is left")
	case best == nil:
	case leave && at >= 0 && n.arms[at].rests(now):
		t.change(now, n, t.mode(best.mode), fmt.Sprintf("%s made no progress", t.mode(n.mode)))
	case leave:
		to := t.mode(best.mode)
		if !slices.ContainsFunc(n.arms, func(a arm) bool { return a.trials > 0 }) { // as a new network
			to, _ = t.start(n.origin, slices.DeleteFunc(slices.Clone(able), func(m Mode) bool { i := t.armOf(n, m); return i >= 0 && !usable(i) }))
		}
		t.change(now, n, to, fmt.Sprintf("%s cannot be used", t.mode(n.mode)))
	default:
		t.change(now, n, t.mode(best.mode), fmt.Sprintf("measured %s against %s", percent(float64(best.mean-n.arms[at].mean)), t.mode(n.mode)))
	}
}

// beginAt changes the mode that a network begins with to the one that other servers say is best.
func (t *Table) beginAt(now time.Time, n *network, at int, usable func(int) bool) {
	best := at
	for i := range n.arms {
		if usable(i) && n.arms[i].mean > n.arms[best].mean {
			best = i
		}
	}
	if n.gain(best, at) > leastGain {
		t.change(now, n, t.mode(n.arms[best].mode), "best at other servers")
		n.sinceChange = dwellConnections // nothing was measured here
	}
}

// percent is a difference of logarithms in percent.
func percent(ln float64) string { return fmt.Sprintf("%+.0f %%", 100*math.Expm1(ln)) }

func (t *Table) change(now time.Time, n *network, m Mode, why string) {
	t.history.add(Change{now, t.prefix(n), t.mode(n.mode), m, why})
	t.setMode(&n.mode, m)
	n.reason, n.since = unique.Make(why), instantOf(now)
	n.sinceChange, n.low, n.level = 0, 0, 0
	t.touch()
}

// Try returns the mode that a network is to be compared with now, in the bulk connections that it
// has, if any. running are the bytes that these have had, and cost those that they are expected to
// have in the other mode.
func (t *Table) Try(now time.Time, prefix netip.Prefix, origin uint32, able []Mode, running, cost float64) (challenger, incumbent Mode, ok bool) {
	return t.try(now, prefix, origin, able, running, cost, false)
}

func (t *Table) try(now time.Time, prefix netip.Prefix, origin uint32, able []Mode, running, cost float64, apart bool) (challenger, incumbent Mode, ok bool) {
	n := t.find(prefix)
	if n == nil {
		mode, why := t.start(origin, able)
		n = t.at(now, prefix, origin, mode)
		n.reason = unique.Make(why)
	}
	t.at(now, prefix, origin, t.mode(n.mode))
	t.consider(now, n, able)
	n.sinceTrial++
	n.sinceChange++
	for i := range n.arms {
		n.widen(i, driftPerConnection)
		n.arms[i].untried++
	}
	// The first trial of a network is in advance of the bytes that it is a share of.
	bytes := n.bulk + max(running, 0)
	if t.options.Explore <= 0 || n.tried > 0 && n.tried+cost > t.options.Explore*bytes || n.lost > mostLoss*(bytes-n.tried) {
		return "", "", false
	}
	at := t.arm(n, t.mode(n.mode))
	if at < 0 {
		return "", "", false
	}
	var best, longest *arm
	most := leastHope
	for i := range n.arms {
		a := &n.arms[i]
		if i == at || !slices.Contains(able, t.mode(a.mode)) || a.rests(now) || !apart && a.futile > 0 && a.untried < tryEvery<<min(a.futile-1, 10) {
			continue
		}
		hope := n.gain(i, at) + optimismSDs*n.deviation(i, at)
		switch {
		case a.surprises > 0:
			hope = math.Inf(1) // it was chance or a change: the next connection says which
		case a.trials == 0:
			hope += neverTried
		}
		if hope > most {
			best, most = a, hope
		}
		if longest == nil || a.untried > longest.untried {
			longest = a
		}
	}
	if n.sinceTrial >= tryEvery && best == nil || longest != nil && int(longest.untried) >= tryEvery*len(n.arms) {
		best = longest
	}
	if best == nil {
		return "", "", false
	}
	best.untried = 0
	n.sinceTrial = 0
	return t.mode(best.mode), t.mode(n.mode), true
}

// Pair is a measurement of two modes in the same connections, one right after the other, or in
// connections that followed each other.
type Pair struct {
	Challenger, Incumbent Mode
	// Apart is the number of connections in the challenger's mode that were compared with others in
	// that of the incumbent; 0: both were measured in the same connections.
	Apart int
	// Ratio is the goodput in the challenger's mode divided by that in the other.
	Ratio float64
	// Bytes are those that the challenger carried.
	Bytes float64
}

// Learn applies a measurement. It does not change the mode of the network: Mode does.
func (t *Table) Learn(now time.Time, prefix netip.Prefix, p Pair) error {
	n := t.find(prefix)
	switch {
	case n == nil:
		return fmt.Errorf("learn of network %q: unknown", prefix)
	case !(p.Ratio > 0) || math.IsInf(p.Ratio, 0) || !(p.Bytes >= 0 && p.Bytes <= mostBytes) || p.Apart < 0 || p.Challenger == p.Incumbent:
		return fmt.Errorf("learn of network %q: invalid measurement %+v", prefix, p)
	}
	n = t.at(now, prefix, n.origin, t.mode(n.mode))
	c, i := t.arm(n, p.Challenger), t.arm(n, p.Incumbent)
	if c < 0 || i < 0 {
		return fmt.Errorf("learn of network %q: invalid mode in %+v", prefix, p)
	}
	ln := min(max(math.Log(p.Ratio), -mostLn), mostLn)
	n.tried = min(n.tried+p.Bytes, mostNumber)
	challenger, incumbent := &n.arms[c], &n.arms[i]
	if p.Apart == 0 {
		challenger.futile = 0
	}
	estimate, least, most, of := n.noiseOf(p)
	single := *estimate * *estimate / of
	var innovation, known, bound float64
	expect := func() {
		innovation, known = ln-n.gain(c, i), n.variance(c, i)
		bound = outlierSDs * math.Sqrt(known+single)
	}
	expect()
	assumed := challenger.assumed || incumbent.assumed
	if assumed && math.Abs(innovation) > bound {
		n.disbelieve()
		expect()
	}
	challenger.assumed = challenger.assumed && incumbent.assumed
	incumbent.assumed = challenger.assumed
	surprise := math.Abs(innovation) > bound
	if surprise {
		if challenger.surprises = min(challenger.surprises+1, math.MaxUint8-1); challenger.surprises >= 2 {
			n.widen(c, outlierAddedSD)
		}
		innovation = math.Copysign(bound, innovation)
	} else {
		challenger.surprises = 0
	}
	noise := of * ((1-noiseGain)*single + noiseGain*max(innovation*innovation-known, 0))
	n.update(c, i, innovation, single)
	if !assumed && !surprise { // else it is the error of what other servers believe, or a change
		*estimate = min(max(math.Sqrt(noise), least), most)
	}
	if p.Incumbent == t.mode(n.mode) {
		if p.Apart > 0 {
			// What scatters as connections do is no loss by itself.
			if gain := n.gain(c, i); !surprise || gain < ln {
				ln = gain
			}
		}
		n.lost = min(n.lost+p.Bytes*max(math.Expm1(-ln), 0), mostNumber)
	}
	for _, a := range []*arm{challenger, incumbent} {
		a.trials++
		a.strikes = 0
		t.vote(n, a)
	}
	t.share(n, now)
	return nil
}

// disbelieve has nothing be believed of modes that is from other servers alone.
func (n *network) disbelieve() {
	for k := range n.arms {
		if n.arms[k].assumed {
			n.assume(k, prior{0, mostSD})
			n.arms[k].assumed = true
		}
	}
}

// update is a step of a Kalman filter: the difference of arms c and i was measured, and is larger
// than expected. noise is the variance of the measurement.
func (n *network) update(c, i int, innovation, noise float64) {
	s := n.variance(c, i) + noise
	cross := make([]float64, len(n.arms)) // of each arm with the difference
	for k := range cross {
		cross[k] = n.covarianceOf(k, c) - n.covarianceOf(k, i)
	}
	for k := range cross {
		n.arms[k].mean = float32(min(max(float64(n.arms[k].mean)+cross[k]/s*innovation, -mostLn), mostLn))
		for l := range k + 1 {
			*n.cell(k, l) -= float32(cross[k] * cross[l] / s)
		}
		*n.cell(k, k) = max(*n.cell(k, k), 0)
	}
}

// Abandoned records that a trial ended without a measurement, after its challenger carried so many
// bytes. The next one waits for more bulk connections each time.
func (t *Table) Abandoned(prefix netip.Prefix, challenger Mode, bytes float64) {
	n := t.find(prefix)
	if n == nil || !(bytes >= 0 && bytes <= mostBytes) {
		return
	}
	n.tried = min(n.tried+bytes, mostNumber)
	if i := t.armOf(n, challenger); i >= 0 {
		n.arms[i].futile = min(n.arms[i].futile+1, math.MaxUint8-1)
	}
	t.touch()
}

// Closed applies what a connection achieved that was in a mode when it ended. Networks are added
// with their first bulk connection; only then is the AS asked for that originates theirs.
func (t *Table) Closed(now time.Time, prefix netip.Prefix, origin func() uint32, m Mode, o Outcome) {
	bulk := o.Bytes >= Bulk
	n := t.find(prefix)
	if n == nil && (!bulk || !m.valid()) || o.Limit >= Limits || o.Bytes > mostBytes ||
		!(o.Goodput >= 0 && o.Goodput <= mostGoodput) || o.MinRTT > mostRTT || o.RTT > mostRTT {
		return
	}
	if n == nil {
		n = t.at(now, prefix, origin(), m)
	} else {
		t.see(n, now)
	}
	i := t.arm(n, m)
	if i < 0 {
		return
	}
	b := n.achieved(i)
	if b == nil {
		n.brought = append(n.brought, achieved{arm: i})
		b = n.achieved(i)
	}
	b.Connections++
	b.Bytes += o.Bytes
	b.Sent += uint64(o.Sent)
	b.Retransmitted += uint64(o.Retransmitted)
	if o.MinRTT > 0 && (b.MinRTT == 0 || o.MinRTT < b.MinRTT) {
		b.MinRTT = o.MinRTT
	}
	if o.RTT > 0 {
		b.RTT += time.Duration(float64(o.RTT-b.RTT) * meanGain(b.Connections))
	}
	if !bulk {
		return
	}
	n.bulk = min(n.bulk+float64(o.Bytes-min(o.Counted, o.Bytes)), mostNumber)
	all := b.Limited.add(o.Limit)
	if o.Goodput > 0 {
		b.Goodput += (o.Goodput - b.Goodput) * meanGain(all)
		if m == t.mode(n.mode) && o.Limit == ByPath {
			n.usual(i, math.Log(o.Goodput))
		}
	}
}

// meanGain is the gain of the mean of n values, of which the last 20 count.
func meanGain(n uint64) float64 { return 1 / float64(min(max(n, 1), 20)) }

// usual compares a bulk connection with others of the mode: those that are much slower are a reason
// to compare the mode with others soon.
func (n *network) usual(at int, ln float64) {
	if n.level == 0 {
		n.level = ln
	}
	if ln > n.level-math.Log(slowFactor) {
		n.low = 0
		n.level += (ln - n.level) * 0.1
		return
	}
	if n.low++; n.low >= slowInARow {
		n.low, n.level = 0, ln
		n.sinceTrial = tryEvery
		for i := range n.arms {
			if n.arms[at].mode == bestID || i == at {
				n.widen(i, outlierAddedSD)
			}
		}
	}
}

// Stalled records that a mode makes no progress in a network. It rests, and what was measured of it
// no longer counts, unless it was so for a client alone, which may have gone.
func (t *Table) Stalled(now time.Time, prefix netip.Prefix, origin uint32, m Mode, alone bool) {
	if !m.valid() {
		return
	}
	n := t.find(prefix)
	if n == nil {
		n = t.at(now, prefix, origin, m)
	}
	n = t.at(now, prefix, origin, t.mode(n.mode))
	i := t.arm(n, m)
	if i < 0 || n.arms[i].rests(now) {
		return
	}
	a := &n.arms[i]
	a.rest = secondsAfter(now.Add(min(leastRest<<min(a.strikes, 10), mostRest)))
	a.strikes = min(a.strikes+1, math.MaxUint8-1)
	if alone {
		return
	}
	a.trials = 0
	if a.mode != bestID {
		n.assume(i, prior{min(float64(a.mean), 0), priorSD})
		t.share(n, now)
	}
}

// Forget removes what is known of a network.
func (t *Table) Forget(prefix netip.Prefix) {
	if n := t.find(prefix); n != nil {
		t.remove(n)
	}
}

// Info is what is known of a network.
type Info struct {
	Prefix netip.Prefix
	Origin uint32
	Mode   Mode
	Why    string
	Since  time.Time
	// Bulk are the bytes of bulk connections, Tried those in other modes than the network's.
	Bulk, Tried float64
	// Modes are the best first.
	Modes []ModeInfo
}

// ModeInfo is what is known of a mode in a network.
type ModeInfo struct {
	Mode Mode
	// Gain is how much more it is believed to bring than Best, as a fraction; SD is the standard
	// deviation of its logarithm, and Trials the number of measurements.
	Gain, SD float64
	Trials   int
	// Rest is for how long the mode is not used, because it made no progress.
	Rest time.Duration
	Brought
}

// Network returns what is known of a network, false if nothing is.
func (t *Table) Network(now time.Time, prefix netip.Prefix) (Info, bool) {
	n := t.find(prefix)
	if n == nil {
		return Info{}, false
	}
	i := Info{Prefix: prefix, Origin: n.origin, Mode: t.mode(n.mode), Why: n.reason.Value(), Since: n.since.time(), Bulk: n.bulk, Tried: n.tried}
	for k, a := range n.arms {
		m := ModeInfo{Mode: t.mode(a.mode), Gain: math.Expm1(float64(a.mean)), SD: math.Sqrt(n.covarianceOf(k, k)), Trials: int(a.trials), Brought: n.total(k)}
		if a.rests(now) {
			m.Rest = a.left(now)
		}
		i.Modes = append(i.Modes, m)
	}
	slices.SortStableFunc(i.Modes, func(a, b ModeInfo) int { return cmp.Compare(b.Gain, a.Gain) })
	return i, true
}
