// Package quota counts what a line with a quota carries, by month, also while the host's clock is
// set, and says when the quota is used up. It has no clock, file or line: the time, what was kept
// and what was carried are arguments.
package quota
