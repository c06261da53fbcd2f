// Package simrun runs a scenario in the simulator, once or over a grid of parameters. It creates no
// namespaces, starts no daemons and sends no packets. There is no BGP: events that need a daemon
// are refused.
package simrun
