package ccbpf

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/tabane/tabane/internal/base/unit"
)

const (
	// Ratio is the control whose subflows have rates.
	Ratio = "ratio"
	// RatesPin is the name of its pinned map: an array of MaxRates rates of payload in bytes per
	// second, 32 bits each, of the subflows in the order in which they joined their connection; 0
	// is no limit. A change takes effect within 20 ms of the next acknowledgment.
	RatesPin = "ratio_rates"
	// MaxRates is the number of subflows that can have a rate. Others have no limit.
	MaxRates = 8
)

// MaxRate is the largest rate.
const MaxRate = unit.Bandwidth(8 * (math.MaxUint32 - 1))

// keptRates returns the pinned map of the control Ratio, or nil if there is none. A version that
// replaces another one keeps it: connections of both have the rates that SetRates changes, and the
// pin is right whichever of the two a loader leaves that is killed.
func keptRates(dir, name string) (*ebpf.Map, error) {
	if name != Ratio {
		return nil, nil
	}
	m, err := openRates(dir, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return m, err
}

// pinRates writes rates to the map of a control, and pins it if it is new.
func pinRates(m *ebpf.Map, isNew bool, o Options) error {
	if err := writeRates(m, o.Rates); err != nil || !isNew {
		return err
	}
	if err := m.Pin(filepath.Join(o.Dir, RatesPin)); err != nil {
		return fmt.Errorf("pin rates: %w", err)
	}
	return nil
}

// SetRates changes the rates of the control Ratio; with another name it does nothing. Sockets have
// them within 20 ms of the next acknowledgment.
func SetRates(dir, name string, rates []unit.Bandwidth) (err error) {
	if name != Ratio {
		return nil
	}
	m, err := openRates(dir, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	return writeRates(m, rates)
}

// Rates returns the rates of the control Ratio without those at the end that have no limit.
func Rates(dir string) (_ []unit.Bandwidth, err error) {
	m, err := openRates(dir, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	var rates []unit.Bandwidth
	last := 0
	for i := range uint32(MaxRates) {
		var rate uint32
		if err := m.Lookup(i, &rate); err != nil {
			return nil, fmt.Errorf("read rates: %w", err)
		}
		if rates = append(rates, 8*unit.Bandwidth(rate)); rate > 0 {
			last = len(rates)
		}
	}
	return rates[:last], nil
}

func openRates(dir string, o *ebpf.LoadPinOptions) (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(cmp.Or(dir, DefaultDir), RatesPin), o)
	if err != nil {
		return nil, fmt.Errorf("open rates: %w", err)
	}
	return m, nil
}

// writeRates writes all rates by one system call.
func writeRates(m *ebpf.Map, rates []unit.Bandwidth) error {
	if len(rates) > MaxRates {
		return fmt.Errorf("set rates: must be at most %d, got %d", MaxRates, len(rates))
	}
	var keys, values [MaxRates]uint32
	for i := range keys {
		keys[i] = uint32(i)
	}
	for i, rate := range rates {
		if rate < 0 || rate > MaxRate {
			return fmt.Errorf("set rates: must be from 0 to %s, got %s", MaxRate, rate)
		}
		values[i] = uint32(rate / 8)
	}
	if _, err := m.BatchUpdate(keys[:], values[:], nil); err != nil {
		return fmt.Errorf("set rates: %w", err)
	}
	return nil
}
