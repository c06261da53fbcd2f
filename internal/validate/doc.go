// Package validate holds the simulator against theory, against other simulators and against the kernel.
package validate
