// Package udp sends and receives batches of datagrams with segmentation offload (UDP_SEGMENT,
// UDP_GRO; udp(7)), over one interface for each socket.
//
// It does not know what the datagrams carry, and keeps no state of their senders.
package udp
