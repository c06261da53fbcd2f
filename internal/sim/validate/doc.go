// Package validate compares the simulator with theory, with other simulators and with the kernel,
// and writes the results to docs/validation.md. Each comparison makes claims that may fail. Its
// only inputs are figures measured in the same run and the formulas that it cites.
package validate
