package scenario

import "math"

// network is a directed graph with capacities, for its maximum flow. Capacities may be infinite.
type network struct {
	index map[string]int
	// capacity is the residual capacity of each edge, by its source and its target.
	capacity []map[int]float64
}

// node returns the index of a node, and adds the node if it is new.
func (n *network) node(name string) int {
	if n.index == nil {
		n.index = map[string]int{}
	}
	i, known := n.index[name]
	if !known {
		i = len(n.capacity)
		n.index[name] = i
		n.capacity = append(n.capacity, map[int]float64{})
	}
	return i
}

// connect adds capacity from one node to another.
func (n *network) connect(from, to string, capacity float64) {
	a, b := n.node(from), n.node(to)
	n.capacity[a][b] += capacity
	if _, ok := n.capacity[b][a]; !ok {
		n.capacity[b][a] = 0
	}
}

// maxFlow returns the maximum flow between two nodes, which is infinite if a path has no limit. It
// consumes the capacities. It augments along shortest paths (Edmonds and Karp, "Theoretical
// improvements in algorithmic efficiency for network flow problems", J. ACM 19(2), 1972), so the
// number of steps does not depend on the capacities.
func (n *network) maxFlow(from, to string) float64 {
	source, sink := n.node(from), n.node(to)
	if source == sink {
		return math.Inf(1)
	}
	total := 0.0
	for {
		before := make([]int, len(n.capacity))
		for i := range before {
			before[i] = -1
		}
		before[source] = source
		for queue := []int{source}; len(queue) > 0 && before[sink] < 0; queue = queue[1:] {
			for next, left := range n.capacity[queue[0]] {
				if left > 0 && before[next] < 0 {
					before[next] = queue[0]
					queue = append(queue, next)
				}
			}
		}
		if before[sink] < 0 {
			return total
		}
		least := math.Inf(1)
		for i := sink; i != source; i = before[i] {
			least = min(least, n.capacity[before[i]][i])
		}
		if math.IsInf(least, 1) {
			return least
		}
		for i := sink; i != source; i = before[i] {
			n.capacity[before[i]][i] -= least
			n.capacity[i][before[i]] += least
		}
		total += least
	}
}
