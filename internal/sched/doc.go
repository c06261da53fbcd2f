// Package sched has the schedulers: they choose the paths that carry the next packet or segment. It
// sends nothing, has no clock and measures nothing.
package sched
