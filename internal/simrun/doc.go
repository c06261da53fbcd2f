// Package simrun runs a scenario in the simulator. It makes no namespaces and sends no packet.
package simrun
