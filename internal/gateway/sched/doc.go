// Package sched implements schedulers, which choose the paths of the next packet or segment. It
// sends nothing, has no clock and measures nothing.
package sched
