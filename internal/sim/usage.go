package sim

// usage is how much of the congestion window is used, as Linux keeps it (tcp_cwnd_validate): a
// window that limited the sender once counts as limiting until all that was sent then is
// acknowledged.
type usage struct {
	limited bool
	most    uint32 // outstanding in this window (max_packets_out)
	end     uint32 // SND.NXT at its start (cwnd_usage_seq)
	sent    bool   // something was sent since validate
}

// validate is called when all that may be sent has been sent.
func (u *usage) validate(f *sender) {
	b := &f.board
	limited := f.room() <= 0
	if !u.sent && (!limited || f.c.exhausted(f)) {
		return
	}
	u.sent = false
	if out := b.outstanding(); b.una >= u.end || limited || !u.limited && out > u.most {
		u.limited, u.most, u.end = limited, out, b.next
	}
}

// limited reports whether the window limited the sender, as far as congestion control is concerned:
// in slow start it counts when more than half of it was used (tcp_is_cwnd_limited).
func (f *sender) limited(a *acked) bool {
	w := f.cc
	if f.c.RACK {
		return f.usage.limited || w.Cwnd < w.Ssthresh && w.Cwnd < float64(2*f.usage.most)
	}
	return float64(a.flight+1) > w.Cwnd || w.Cwnd < w.Ssthresh && float64(2*a.flight) > w.Cwnd
}

// grows returns for how many segments the window grows: what is delivered by an acknowledgement that
// acknowledges cumulatively, or, once segments came late by more than DupThresh, selectively
// (tcp_may_raise_cwnd).
func (f *sender) grows(a *acked) int {
	if a.segments == 0 && f.rack.reordering.most <= dupThresh {
		return 0
	}
	return a.delivered
}
