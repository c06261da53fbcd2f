// Package handshake is the handshake of two gateways: Noise IKpsk2 with static keys, guarded so
// that a stranger costs one hash and gets no answer. docs/wire.md describes the messages.
//
// It opens no socket and reads neither clock nor randomness: both are arguments. It seals no data;
// it returns the keys for it.
package handshake
