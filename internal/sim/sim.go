package sim

import (
	"context"
	"errors"
)

// Sim is one simulation.
type Sim struct {
	config Config
}

// New makes a simulation. What is wrong with the config is a fault.List.
func New(c Config) (*Sim, error) {
	if err := c.Check().Err(); err != nil {
		return nil, err
	}
	return &Sim{config: c}, nil
}

// Run simulates, once. When ctx is done it ends with its error.
func (s *Sim) Run(ctx context.Context) (Result, error) {
	return Result{}, errors.New("run simulation: there are no endpoints yet")
}
