package condition

import "testing"

func TestTracked(t *testing.T) {
	for _, tt := range []struct {
		set  parameters
		want string
	}{
		{nil, ""},
		{parameters{"net.netfilter.nf_conntrack_count": "899", "net.netfilter.nf_conntrack_max": "1000"}, ""},
		{
			parameters{"net.netfilter.nf_conntrack_count": "900", "net.netfilter.nf_conntrack_max": "1000"},
			"90 % or more of the 1000 connections that can be tracked are; further ones are dropped when the table is full: sysctl -w net.netfilter.nf_conntrack_max=2000",
		},
		{parameters{"net.netfilter.nf_conntrack_count": "7", "net.netfilter.nf_conntrack_max": "0"}, ""},
	} {
		list, err := tracked(tt.set.read).Examine()
		got := ""
		for _, p := range list {
			got += p.Error()
		}
		if got != tt.want || err != nil {
			t.Errorf("%v: %q, %v; want %q", tt.set, got, err, tt.want)
		}
	}
	if _, err := tracked(parameters{"net.netfilter.nf_conntrack_count": "x"}.read).Examine(); err == nil {
		t.Error("no error of what is no number")
	}
}
