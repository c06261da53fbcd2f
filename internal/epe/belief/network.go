package belief

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unique"
)

const (
	// MaxModes bounds the modes of a network, maxName the name of one in bytes.
	MaxModes = 16
	maxName  = 128

	// Standard deviations of ln(goodput of a mode / goodput of Best): of a network nothing is known
	// of, of one in an AS with others, and of one among any others.
	priorSD, originSD, allSD = 0.3, 0.08, 0.2

	// What a standard deviation grows by.
	driftPerConnection, driftPerDay = 0.01, 0.1
	// mostSD bounds a standard deviation.
	mostSD = 0.5
)

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
