# border2, whose peer transit-b is 2001:db8:b::2 on wan.
ip -6 route add fc00:2:1::/128 encap seg6local action End.DX6 nh6 2001:db8:b::2 dev wan
