package qoe

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestOrdersAreBalanced: each condition at each position, and after each other one, equally often.
func TestOrdersAreBalanced(t *testing.T) {
	for n := 1; n <= 16; n++ {
		orders := Orders(n)
		want := n
		if n%2 == 1 && n > 1 {
			want = 2 * n
		}
		if len(orders) != want {
			t.Errorf("%d conditions: %d orders, want %d", n, len(orders), want)
		}
		at, after := map[[2]int]int{}, map[[2]int]int{}
		for _, order := range orders {
			if len(order) != n {
				t.Fatalf("%d conditions: order %v", n, order)
			}
			for i, c := range order {
				at[[2]int{i, c}]++
				if i > 0 {
					after[[2]int{order[i-1], c}]++
				}
			}
		}
		for i := range n {
			for c := range n {
				if at[[2]int{i, c}] != len(orders)/n {
					t.Errorf("%d conditions: %d is %d times at position %d", n, c, at[[2]int{i, c}], i)
				}
				if wants := len(orders) / n; i != c && after[[2]int{i, c}] != wants {
					t.Errorf("%d conditions: %d is %d times after %d, want %d", n, c, after[[2]int{i, c}], i, wants)
				}
			}
			if after[[2]int{i, i}] != 0 {
				t.Errorf("%d conditions: %d follows itself", n, i)
			}
		}
	}
}

func TestDesign(t *testing.T) {
	for n := 1; n <= 7; n++ {
		for services := 1; services <= 2; services++ {
			design := Design(n, services, rand.New(rand.NewPCG(uint64(n), 1)))
			if len(design) != services*len(Orders(n)) {
				t.Errorf("%d conditions, %d services: %d orders", n, services, len(design))
			}
			first := map[[3]int]int{} // condition, position of the condition, service
			for _, slots := range design {
				seen := map[Slot]bool{}
				for i, s := range slots {
					if seen[s] || s.Condition != slots[i/services*services].Condition {
						t.Fatalf("order %v", slots)
					}
					seen[s] = true
				}
				if len(seen) != n*services {
					t.Fatalf("order %v", slots)
				}
				for i := 0; i < len(slots); i += services {
					first[[3]int{slots[i].Condition, i, slots[i].Service}]++
				}
			}
			if want := len(design) / n / services; len(first) != n*n*services || first[[3]int{0, 0, 0}] != want {
				t.Errorf("%d conditions, %d services: the first service is not balanced: %v", n, services, first)
			}
			for k, count := range first {
				if count != len(design)/n/services {
					t.Errorf("%d conditions, %d services: %v has %d", n, services, k, count)
				}
			}
		}
	}
	a, b := Design(5, 2, rand.New(rand.NewPCG(1, 1))), Design(5, 2, rand.New(rand.NewPCG(2, 1)))
	if a[0][0] == b[0][0] && a[1][2] == b[1][2] && a[2][4] == b[2][4] && a[3][6] == b[3][6] {
		t.Error("two seeds have equal designs")
	}
}

// TestNextOrder: participants use all orders equally often, in an order that differs between seeds.
func TestNextOrder(t *testing.T) {
	used := make([]int, 6)
	rng := rand.New(rand.NewPCG(1, 2))
	var sequence []int
	for range 60 {
		i := NextOrder(used, rng)
		used[i]++
		sequence = append(sequence, i)
	}
	for _, n := range used {
		if n != 10 {
			t.Errorf("used %v", used)
		}
	}
	if same := sequence[0] == 0 && sequence[1] == 1 && sequence[2] == 2 && sequence[3] == 3; same {
		t.Errorf("not at random: %v", sequence[:6])
	}
	if i := NextOrder([]int{3, 2, 1, 2}, rng); i != 2 {
		t.Errorf("got %d, want the least used", i)
	}
}

func TestScore(t *testing.T) {
	for text, want := range map[string]Score{"1": 1, "5": 5} {
		if got, err := ParseScore(text); err != nil || got != want {
			t.Errorf("%q: got %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "6", "05", "3 ", "٣", "-1", "3.5"} {
		if got, err := ParseScore(text); err == nil {
			t.Errorf("%q: got %d", text, got)
		}
	}
}

func TestUsabilityOfAnAnswer(t *testing.T) {
	a := Answer{Met: 3, Took: 90 * time.Second}
	if u, ok := a.Usability(); !ok || u != (Usability{3, 2}) {
		t.Errorf("got %+v, %v", u, ok)
	}
	for _, a := range []Answer{{Met: 3, Took: time.Minute, Interrupted: true}, {Met: 3}} {
		if u, ok := a.Usability(); ok || u.Effectiveness != 3 {
			t.Errorf("%+v: got %+v, %v", a, u, ok)
		}
	}
}
