# FRR allocates SIDs of its locator, the first for IPv6 and the second for IPv4, and installs them only with a VRF. Without one, this does it.
ip -6 route add fc00:1:0:1:100::/128 encap seg6local action End.DT6 table main dev wan
# End.DX4 sends to the gateway of the route to nh4. The peer itself is no good: without a gateway, the kernel resolves the inner destination.
ip route add 240.0.0.1 via 10.10.0.2 dev wan
ip -6 route add fc00:1:0:1:200::/128 encap seg6local action End.DX4 nh4 240.0.0.1 dev wan
