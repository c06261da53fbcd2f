// Package quality estimates what is known of a path: round trip time, one-way delay, jitter, loss
// and rate. It sends no probes and reads no clock; samples come in with their times.
package quality
