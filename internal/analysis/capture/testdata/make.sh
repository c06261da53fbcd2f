#!/usr/bin/env bash
# Makes the captures in this folder again: real MPTCP connections of this kernel over two paths, in namespaces of their own.
# Needs root, iproute2, tcpdump and editcap (wireshark-common); TABANE=path of the program. They are cut to the headers, so small, but for those with checksums. The
# numbers that tests expect are those of the files that are here: after making them again, put in what tshark says.
set -euo pipefail
out=${1:-$(dirname "$0")}
tabane=${TABANE:-tabane}
c=tabane-test-capture-c s=tabane-test-capture-s
cleanup() {
	[ -z "${server:-}" ] || kill "$server" 2>/dev/null || true
	ip netns del $c 2>/dev/null || true
	ip netns del $s 2>/dev/null || true
}
trap cleanup EXIT
ip netns add $c; ip netns add $s
for n in $c $s; do ip -n $n link set lo up; done
# Path 1: 10 Mbit/s; path 2: 5 Mbit/s with a long queue, so that its segments are late.
for i in 1 2; do
	ip -n $c link add p$i type veth peer name p$i netns $s
	ip -n $c addr add 10.0.$i.1/24 dev p$i; ip -n $s addr add 10.0.$i.2/24 dev p$i
	ip -n $c addr add fd00:$i::1/64 dev p$i nodad; ip -n $s addr add fd00:$i::2/64 dev p$i nodad
	ip -n $c link set p$i up; ip -n $s link set p$i up
done
ip netns exec $s tc qdisc add dev p1 root tbf rate 10mbit burst 3000 limit 30000
ip netns exec $s tc qdisc add dev p2 root tbf rate 5mbit burst 3000 limit 60000
for n in $c $s; do
	ip netns exec $n sysctl -qw net.mptcp.enabled=1
	ip -n $n mptcp limits set subflows 2 add_addr_accepted 2
done
ip -n $s mptcp endpoint add 10.0.2.2 dev p2 signal
ip -n $s mptcp endpoint add fd00:2::2 dev p2 signal
ip netns exec $s "$tabane" serve --listen '[::]:80' >/dev/null 2>&1 &
server=$!
sleep 1

# capture NODE NAME OPTIONS...: what follows until finish is captured at that node.
dumps=()
capture() {
	local node=$1 file=$2; shift 2
	ip netns exec "$node" tcpdump --immediate-mode -q -w "$out/$file" "$@" tcp >/dev/null 2>&1 &
	dumps+=($!)
}
finish() {
	sleep 0.5
	kill "${dumps[@]}"; wait "${dumps[@]}" || true
	dumps=()
}
fetch() { ip netns exec $c "$tabane" fetch --mptcp --progress none "$@"; }

# Both paths at the receiver, one file of all interfaces (cooked, version 2), nanoseconds.
capture $c receiver-any.pcap -i any -s 100 --time-stamp-precision=nano
sleep 0.5; fetch http://10.0.1.2/bytes/500000; finish
# One file for each path at the receiver, and one for both at the sender; IPv6.
capture $c receiver-1.pcap -i p1 -s 114; capture $c receiver-2.pcap -i p2 -s 114; capture $s sender-any.pcap -i any -s 120
sleep 0.5; fetch 'http://[fd00:1::2]/bytes/300000'; finish
# Path 1 loses everything for a while: what was sent on it comes again over path 2.
capture $c reinjection.pcap -i any -s 100
sleep 0.5
fetch http://10.0.1.2/bytes/400000 &
fetched=$!
sleep 0.1; ip -n $s link set p1 down; wait $fetched; ip -n $s link set p1 up; finish
# Plain TCP on one path.
capture $c tcp.pcap -i p1 -s 94
sleep 0.5; ip netns exec $c "$tabane" fetch --progress none http://10.0.1.2/bytes/150000; finish
gzip -9nf "$out"/*.pcap

# Captured at that node of the lab, while some bytes are fetched: one file for each node, in whole packets.
both() {
	local name=$1 bytes=$2
	for node in server client; do
		"$tabane" lab capture --lab $lab $node "$out/$name-$node.pcapng" 2>/dev/null &
		dumps+=($!)
	done
	sleep 1
	"$tabane" lab exec --lab $lab client -- "$tabane" fetch --mptcp --progress none "http://server/bytes/$bytes"
	sleep 0.5
	kill -INT "${dumps[@]}"; wait "${dumps[@]}" || true
	dumps=()
}

# The built-in scenario with SRv6 and three subflows: the server, where packets leave inside SRv6, and the client.
lab=test-capture
"$tabane" lab up epe-steady --name $lab >/dev/null
trap '"$tabane" lab down $lab >/dev/null; cleanup' EXIT
both whole 300000
for node in server client; do
	editcap -s 160 "$out/whole-$node.pcapng" "$out/srv6-$node.pcapng"
	rm "$out/whole-$node.pcapng"
	gzip -9nf "$out/srv6-$node.pcapng"
done

# The same with checksums, for which whole packets are needed.
for node in server client; do "$tabane" lab exec --lab $lab $node -- sysctl -qw net.mptcp.checksum_enabled=1; done
both checksums 80000
gzip -9nf "$out"/checksums-*.pcapng
