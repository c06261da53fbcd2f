// Package pathset selects the set of paths that the discipline auto uses together, by the rates
// that sets of paths achieved. It does not choose the path of a packet, which package sched does
// among the set; it measures nothing, sends nothing and has no clock.
package pathset
