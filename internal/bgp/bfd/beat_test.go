package bfd

import (
	"net"
	"testing"
	"time"
)

// A helper sends the packet of a session that is up when its loop is late, not before, not without
// end, and not after the loop has sent that the session is down.
func TestHelpersSendWhatIsLate(t *testing.T) {
	receiver, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer receiver.Close()
	conn, err := net.Dial("udp4", receiver.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const every = 50 * time.Millisecond
	start := time.Now()
	up := packet{state: stateUp, poll: true, multiplier: 3, my: 1, your: 2, desiredTx: every, requiredRx: every}
	var b beat
	expect := func(what string, at time.Duration, interval time.Duration, packets int) {
		t.Helper()
		if got := b.assist(start.Add(at)); got != interval {
			t.Errorf("%s: looks again after %s, want %s", what, got, interval)
		}
		if _, err := conn.Write([]byte("end")); err != nil {
			t.Fatal(err)
		}
		n := 0
		for buf := make([]byte, 100); ; n++ {
			_ = receiver.SetReadDeadline(time.Now().Add(time.Minute))
			length, err := receiver.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			if string(buf[:length]) == "end" {
				break
			}
			got, err := decode(buf[:length])
			if want := up; err != nil {
				t.Error(err)
			} else if want.poll = false; got != want {
				t.Errorf("%s: sent %+v, want %+v", what, got, want)
			}
		}
		if n != packets {
			t.Errorf("%s: %d packets, want %d", what, n, packets)
		}
	}
	expect("no session", 0, 0, 0)
	b.set(conn, up, every, start)
	expect("in time", every, every, 0)
	expect("late", every*5/4, every, 1)
	expect("the other helper", every*5/4+1, every, 0)
	expect("still late", every*5/2, every, 1)
	expect("the loop hangs", beatMost+1, 0, 0)
	b.set(conn, up, 4*every, start)
	expect("the neighbor wants fewer", 4*every, 4*every, 0)
	b.set(conn, packet{state: stateDown}, every, start)
	expect("down", time.Second, 0, 0)
	b.set(conn, up, every, start)
	b.clear()
	expect("closed", time.Second, 0, 0)
}

func TestSomeCPUs(t *testing.T) {
	all := someCPUs(1 << 20)
	some := someCPUs(2)
	if len(all) == 0 || len(some) != min(2, len(all)) || some[0] != all[0] || some[len(some)-1] != all[len(all)-1] && len(all) > 1 {
		t.Errorf("%v of %v", some, all)
	}
}
