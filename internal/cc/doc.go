// Package cc holds congestion controls of TCP and MPTCP: how large the window of each subflow of a
// connection is. It sends nothing and has no clock; whoever sends tells it what was delivered and
// what was lost.
//
// Windows are floats, in segments, and so are rates. In integers the same is done as in Linux: a
// window in whole segments with a counter of what is still missing to the next, and rates, alphas
// and increases scaled by 2^10 before they are divided.
package cc
