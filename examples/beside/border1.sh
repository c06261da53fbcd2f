# border1, whose peer transit-a is 2001:db8:a::2 on wan: packets to this SID leave to that peer only.
ip -6 route add fc00:1:1::/128 encap seg6local action End.DX6 nh6 2001:db8:a::2 dev wan
