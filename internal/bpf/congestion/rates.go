package congestion

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/tabane/tabane/internal/unit"
)

const (
	// Ratio is the control whose subflows have rates.
	Ratio = "ratio"
	// RatesPin is the name of its pinned map: an array of MaxRates rates of payload in bytes per
	// second, 32 bits each, of the subflows in the order in which they joined their connection; 0 is no
	// limit. A change takes effect within 20 ms of the next acknowledgment.
	RatesPin = "ratio_rates"
	// MaxRates is the number of subflows that can have a rate. Others have no limit.
	MaxRates = 8
)

// MaxRate is the largest rate.
const MaxRate = unit.Bandwidth(8 * (math.MaxUint32 - 1))

// pinRates writes rates to a map that no socket uses yet, and pins it.
func pinRates(m *ebpf.Map, o Options) error {
	if err := writeRates(m, o.Rates); err != nil {
		return err
	}
	pin := filepath.Join(o.Dir, RatesPin)
	if err := os.Remove(pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("pin rates: %w", err)
	}
	if err := m.Pin(pin); err != nil {
		return fmt.Errorf("pin rates: %w", err)
	}
	return nil
}

// SetRates changes the rates of the control Ratio; with another name it does nothing. Sockets have them
// within 20 ms of the next acknowledgment.
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

func writeRates(m *ebpf.Map, rates []unit.Bandwidth) error {
	if len(rates) > MaxRates {
		return fmt.Errorf("set rates: must be at most %d, got %d", MaxRates, len(rates))
	}
	for i := range MaxRates {
		rate := unit.Bandwidth(0)
		if i < len(rates) {
			rate = rates[i]
		}
		if rate < 0 || rate > MaxRate {
			return fmt.Errorf("set rates: must be from 0 to %s, got %s", MaxRate, rate)
		}
		if err := m.Put(uint32(i), uint32(rate/8)); err != nil {
			return fmt.Errorf("set rates: %w", err)
		}
	}
	return nil
}
