// Package gateway is the control plane of a gateway: it decides the state of the data plane, and
// which routes lead to the peers.
//
// It carries no packets; a plane.Carrier does.
package gateway
