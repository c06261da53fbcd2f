// Package reseq is the resequencing buffer of a receiver of several paths, and measures what
// putting things into order costs: delay, bursts and memory. It holds no payload and has no clock.
package reseq
