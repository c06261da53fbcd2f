// Package sealed is the sealed data plane of a gateway in user space: packets from a TUN device are
// scheduled, stamped, sealed and sent over UDP paths to other gateways, and the other way round.
//
// It decides nothing about the kernel around it: addresses, routes and rules belong to the daemon.
// It reads no configuration files.
//
// # Parts of a peer
//
// A [Plane] has lines, which are its own paths, and peers. A peer has parts, each in the file of
// its name, and a link for each path:
//
//   - sessionState: keys, and who numbers the paths; initiating: handshakes that this gateway begins
//   - prober, proving: whether links answer, and at which addresses the peer is
//   - registering, memberRequest, relaying: registrations with home agents, what members relay
//   - scheduling, policy, selection, pacing: which link a packet is sent on, and when
//   - messages, controlMessage: control messages that are sent, and handlers of those received
//   - receiving: packets of the peer are measured, put in order and delivered
//
// # Locks
//
// A peer has one mutex for all its parts except receiving, which has its own, so that packets of
// both directions do not wait for each other. Methods of parts, links and control messages are
// called with the peer's mutex locked. A method of a type that has a mutex and expects it locked
// ends in Locked.
//
// Locks are taken in this order; those of one row are never held together:
//
//  1. Plane.mu: configuration
//  2. peer.mu
//  3. Plane.outMu, receiving: packets that are sealed, packets that are put in order
//  4. Plane.guardMu: initiations that are judged
//  5. Plane.keysMu, Plane.relaysMu, Plane.writeMu, exchanges.mu, and those of a line, of its ceiling,
//     of a replay window and of a policer
package sealed
