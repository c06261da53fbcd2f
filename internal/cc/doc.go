// Package cc holds congestion controls of TCP and MPTCP: how large the window of each subflow of a connection is. It sends nothing
// and has no clock; whoever sends tells it what was delivered and what was lost.
package cc
