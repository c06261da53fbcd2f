// Package validate holds the simulator against theory, against other simulators and against the
// kernel, and writes down how it fares: docs/validation.md. It judges with claims that may fail; it
// repairs nothing, and knows no figures but those it measures in the same run and the formulas that
// it names.
package validate
