// Package gateway is the machine of a gateway: it decides what the data plane is to do, and which
// routes lead to the peers.
//
// It carries no packet: that is the part of a plane.Carrier.
package gateway
