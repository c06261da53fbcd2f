// Package reseq restores the order of what arrived over several paths. Buffer is the reorder buffer
// of a byte stream; it holds no payload and measures its delay, bursts and occupancy. Receiver
// restores the order of a tunnel's packets, which may be lost. Neither has a clock.
package reseq
