// Package openplane is the open plane of a gateway: packets to open peers are sent over several
// paths by a program in the kernel (package bpf/gateway/open), unencrypted. The sealed plane has
// the sessions with the peers, measures the paths, and carries what the program leaves. Whenever a
// measurement changes, this package gives the program the paths to use.
//
// No packet passes through it.
package openplane
