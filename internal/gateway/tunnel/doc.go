// Package tunnel encodes, seals and numbers the packets of a gateway's tunnel, and rejects replayed
// ones. docs/wire.md describes the format.
//
// It sends nothing, holds no packet, reads no clock and makes no keys: they come from a handshake.
package tunnel
