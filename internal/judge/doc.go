// Package judge decides which paths the discipline auto uses together. It compares what sets of paths
// achieved; it measures nothing, sends nothing and has no clock.
package judge
