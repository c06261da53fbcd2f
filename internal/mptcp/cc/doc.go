// Package cc implements congestion controls of TCP and MPTCP, which compute the congestion window
// of each subflow of a connection. It sends nothing and has no clock: callers report what was
// delivered and lost.
//
// Windows and rates are floats, in segments. Linux does the same in integers: a window in whole
// segments with a counter (snd_cwnd_cnt), and rates, alphas and increases scaled by 2^10 before
// division. Cubic has whole segments, too.
package cc
