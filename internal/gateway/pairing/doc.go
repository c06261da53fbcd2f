// Package pairing decides which lines of two sites meet: every line of both carries a path if the
// lines reach each other so, and the rates that meet fit. It sends nothing, measures nothing and
// has no clock: what answers is an argument.
package pairing
