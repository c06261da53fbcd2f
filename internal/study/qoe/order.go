package qoe

import "math/rand/v2"

// Slot is a task of a participant: a service under a condition, both by their index.
type Slot struct{ Condition, Service int }

// Orders returns balanced orders of n conditions (E. J. Williams, Experimental designs balanced for
// the estimation of residual effects of treatments, 1949): each condition is equally often at each
// position, and follows each other condition equally often. It takes n orders where n is even, a
// Latin square, and 2n where n is odd, two of them.
func Orders(n int) [][]int {
	var orders [][]int
	for start := range n {
		order := make([]int, n)
		for i := range order {
			// 0, 1, n-1, 2, n-2, and so on.
			step := (i + 1) / 2
			if i%2 == 0 {
				step = n - i/2
			}
			order[i] = (start + step) % n
		}
		orders = append(orders, order)
	}
	if n%2 == 0 || n == 1 {
		return orders
	}
	for _, order := range orders[:n] {
		reversed := make([]int, n)
		for i, c := range order {
			reversed[n-1-i] = c
		}
		orders = append(orders, reversed)
	}
	return orders
}

// Design returns the balanced orders of tasks: each participant has one of them. A condition is
// used with all services before the next one; which service comes first alternates, and does so
// equally often for each condition at each position. The conditions are numbered at random before,
// so that an order says nothing of its conditions.
func Design(conditions, services int, rng *rand.Rand) [][]Slot {
	label := rng.Perm(conditions)
	var design [][]Slot
	for _, order := range Orders(conditions) {
		for first := range services {
			var slots []Slot
			for i, c := range order {
				for s := range services {
					slots = append(slots, Slot{label[c], (s + i + first) % services})
				}
			}
			design = append(design, slots)
		}
	}
	return design
}

// NextOrder returns the order of the next participant, used is how often each order is in use: one
// of the least used, at random.
func NextOrder(used []int, rng *rand.Rand) int {
	var least []int
	for i, n := range used {
		switch {
		case len(least) == 0 || n < used[least[0]]:
			least = []int{i}
		case n == used[least[0]]:
			least = append(least, i)
		}
	}
	return least[rng.IntN(len(least))]
}
