// Package capture reconstructs MPTCP and TCP connections from captures and measures their
// resequencing: delay, burst lengths and reorder-buffer occupancy. It captures nothing itself.
package capture
