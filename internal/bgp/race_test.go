//go:build race

package bgp

// raceDetector is set when the tests run under the race detector.
const raceDetector = true
