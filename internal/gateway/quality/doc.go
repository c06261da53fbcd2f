// Package quality estimates round-trip time, one-way delay, jitter, loss and rate of a path. It
// sends no probes and reads no clock; samples come with their times.
package quality
