// Package heap measures how much memory values take, for tests and benchmarks.
package heap

import "runtime"

// InUse returns the bytes of the objects on the heap that are reachable. It collects garbage.
func InUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
