// Package sim is a discrete-event simulator of TCP and MPTCP over links: packets without content,
// in virtual time, the same for the same seed. It reads no file and draws nothing.
package sim
