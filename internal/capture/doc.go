// Package capture finds the MPTCP connections in captures and what putting their data into order costs. It captures nothing itself.
package capture
