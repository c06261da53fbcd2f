# FRR allocates the first SID of its locator, and installs it only with a VRF. Without one, this does it.
ip -6 route add fc00:1:0:1:100::/128 encap seg6local action End.DT6 table main dev wan
