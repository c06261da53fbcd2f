// Package repair recovers the messages that a path of a tunnel loses: Gaps finds at the receiver
// which ones are to be requested, and Kept has them at the sender. It sends nothing and has no
// clock.
package repair
