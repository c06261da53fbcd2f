// Package pcap reads captures (pcap, pcapng, gzip) and finds the TCP segments in them, also inside tunnels. It does not know what
// connections they belong to.
package pcap
