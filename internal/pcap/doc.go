// Package pcap reads captures (pcap, pcapng, gzip) and finds the TCP segments in them, also inside tunnels. It does not know what
// connections they belong to.
//
// Captures are read here and not with gopacket's pcapgo because a broken place must not be the end: this reader checks each
// record against its surroundings, says at which byte of the file what is wrong, and goes on behind it. It also keeps what
// pcapgo drops, such as the direction of a packet and how many the capture lost.
package pcap
