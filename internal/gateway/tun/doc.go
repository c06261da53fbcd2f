// Package tun is a TUN device with offloads: TCP and UDP super-packets are read and written whole,
// with one system call each (virtio_net_hdr, include/uapi/linux/virtio_net.h).
//
// It assigns no addresses and no routes, and does not look beyond the headers that segmentation
// changes.
package tun
