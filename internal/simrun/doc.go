// Package simrun runs a scenario in the simulator, once or over a grid of parameters. It makes no
// namespaces, runs no daemon and sends no packet: there is no BGP in it, and what only daemons can
// do is refused.
package simrun
