package offload

import "testing"

func TestOffloads(t *testing.T) {
	for feature, want := range map[string]bool{
		"tx-checksum-ip-generic": true, "tx-checksum-sctp": true, "tx-tcp-segmentation": true, "tx-tcp6-segmentation": true,
		"tx-udp-segmentation": true, "tx-gso-list": true, "tx-generic-segmentation": true, "rx-gro": true, "rx-gro-list": true, "rx-udp-gro-forwarding": true,
		"tx-vlan-hw-insert": false, "rx-checksum": false, "tx-scatter-gather": false, "highdma": false, "tx-lockless": false,
	} {
		if got := offload(feature); got != want {
			t.Errorf("offload(%q) = %v", feature, got)
		}
	}
}
