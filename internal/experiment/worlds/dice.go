package worlds

import (
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// dice draws numbers.
type dice struct{ *rand.Rand }

func (d dice) chance(p float64) bool { return d.Float64() < p }

// log draws a number whose logarithm is evenly distributed.
func (d dice) log(from, to float64) float64 { return from * math.Pow(to/from, d.Float64()) }

func (d dice) rate(from, to unit.Bandwidth) unit.Bandwidth {
	return rounded(unit.Bandwidth(d.log(float64(from), float64(to))))
}

func (d dice) duration(from, to time.Duration) time.Duration {
	return time.Duration(d.log(float64(from), float64(to))).Round(100 * time.Microsecond)
}

func (d dice) pick(of ...int) int { return of[d.IntN(len(of))] }

// digits rounds to three significant digits, so that files and texts are short.
func digits(x float64) float64 {
	y, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 3, 64), 64)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return y
}

func rounded(b unit.Bandwidth) unit.Bandwidth { return unit.Bandwidth(digits(float64(b))) }
