// Package channel says what one direction of a link does to frames (Profile), and does it in virtual time (Pipe): rate, delay, jitter,
// loss, duplication, queue. It moves no frame and has no clock; package link does with frames, package sim without.
package channel
