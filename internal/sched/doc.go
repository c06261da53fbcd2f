// Package sched decides which path carries the next packet or segment. It sends nothing, has no clock, and measures nothing itself.
package sched
