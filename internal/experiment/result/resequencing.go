package result

import (
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/reseq"
)

const (
	// LargeBurst is the number of segments from which a burst counts as large.
	LargeBurst = 10
	// burstsSettle is the time from the start of a connection after which its bursts are those
	// of the steady state (paper B, section 4.1).
	burstsSettle = 3 * time.Second
)

// PutResequencing adds the measurements of a resequencing buffer to a run's metrics. Throughput is
// a share of rates, and left out if these are not known. Metrics of bursts over time are left out
// if the buffer did not record them.
func PutResequencing(metrics map[string]float64, m *reseq.Measures, rates unit.Bandwidth, lasted time.Duration) {
	if rates > 0 && lasted > 0 {
		capacity := float64(rates) * lasted.Seconds() / 8
		metrics[ThroughputBefore] = float64(m.Arrived.Bytes) / capacity
		metrics[ThroughputAfter] = float64(m.Released.Bytes) / capacity
	}
	metrics[ReseqDelayMean] = m.Delay.Mean() / float64(time.Second)
	for name, ns := range map[string]int64{
		ReseqDelayP50: m.Delay.Quantile(0.5), ReseqDelayP95: m.Delay.Quantile(0.95), ReseqDelayP99: m.Delay.Quantile(0.99), ReseqDelayMax: m.Delay.Max(),
	} {
		metrics[name] = time.Duration(ns).Seconds()
	}
	metrics[BurstMax], metrics[BurstP99] = float64(m.Bursts.Max()), float64(m.Bursts.Quantile(0.99))
	metrics[BufferMax], metrics[BufferMean] = float64(m.PeakOccupancy.Bytes), m.MeanOccupancy
	putBursts(metrics, m.Series, lasted)
}

// putBursts adds the metrics of bursts over time: of the start, and of the steady state.
func putBursts(metrics map[string]float64, series []reseq.Burst, lasted time.Duration) {
	if len(series) == 0 {
		return
	}
	first, steady, small := 0, 0, 0
	var large, periods []float64
	var last time.Duration
	for _, b := range series {
		if b.At >= burstsSettle {
			steady = max(steady, b.Segments)
		}
		switch {
		case b.At < burstsSettle:
			first = max(first, b.Segments)
		case b.Segments < LargeBurst:
			small = max(small, b.Segments)
		default:
			if len(large) > 0 {
				periods = append(periods, (b.At - last).Seconds())
			}
			large, last = append(large, float64(b.Segments)), b.At
		}
	}
	metrics[BurstFirst] = float64(first)
	if lasted <= burstsSettle {
		return
	}
	metrics[BurstSteady], metrics[BurstSmall] = float64(steady), float64(small)
	metrics[BurstsPerSecond] = float64(len(large)) / (lasted - burstsSettle).Seconds()
	if len(large) > 0 {
		metrics[BurstLarge] = middle(large)
	}
	if len(periods) > 0 {
		metrics[BurstPeriod] = middle(periods)
	}
}

// middle returns the lower median of at least one value.
func middle(values []float64) float64 {
	slices.Sort(values)
	return values[(len(values)-1)/2]
}
