// Package sealed is the sealed data plane of a gateway in user space: packets from a TUN device are
// scheduled, stamped, sealed and sent over UDP paths to other gateways, and the other way round.
//
// It decides nothing about the kernel around it: addresses, routes and rules belong to the daemon.
// It reads no configuration files.
package sealed
