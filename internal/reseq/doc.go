// Package reseq is the resequencing buffer of a receiver with several paths, and measures its
// delay, bursts and occupancy. It holds no payload and has no clock.
package reseq
