package sim_test

import (
	"context"
	"fmt"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/sim"
)

func Example() {
	c := sim.Config{
		Seed: 1, Duration: 30 * time.Second,
		Links: []sim.Link{
			{Name: "there", Profile: linkmodel.Profile{Rate: 10 * unit.MbitPerSecond, Delay: 20 * time.Millisecond}},
			{Name: "back", Profile: linkmodel.Profile{Rate: 10 * unit.MbitPerSecond, Delay: 20 * time.Millisecond}},
		},
		Connections: []sim.Connection{{Paths: []sim.Path{{Out: []int{0}, Back: []int{1}}}}},
	}
	s, err := sim.New(c)
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := s.Run(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Connections[0].After() > 9*unit.MbitPerSecond, r.Connections[0].Finish == sim.Never)
	// Output: true true
}
