package mptcpify

import (
	"os"
	"testing"
)

func TestParseCredentials(t *testing.T) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	user, group, err := parseCredentials(status)
	if err != nil || int(user) != os.Geteuid() || int(group) != os.Getegid() {
		t.Errorf("this process: user %d, group %d, %v; want %d, %d", user, group, err, os.Geteuid(), os.Getegid())
	}
	for _, tt := range []struct {
		status      string
		user, group uint32
		ok          bool
	}{
		{"Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n", 4, 8, true},
		{"\nUid:\t0\t0\t0\t4294967295\nGid:\t0\t0\t0\t0\n", 4294967295, 0, true},
		{"Name:\tUid: 1 2 3 4\n", 0, 0, false},
		{"\nUid:\t1\t2\t3\t4\n", 0, 0, false},
		{"\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8", 0, 0, false}, // cut off
		{"\nUid:\t1\t2\t3\nGid:\t5\t6\t7\t8\n", 0, 0, false},
		{"\nUid:\t1\t2\t3\t-1\nGid:\t5\t6\t7\t8\n", 0, 0, false},
		{"\nUid:\t1\t2\t3\t4294967296\nGid:\t5\t6\t7\t8\n", 0, 0, false},
	} {
		user, group, err := parseCredentials([]byte(tt.status))
		if (err == nil) != tt.ok || tt.ok && (user != tt.user || group != tt.group) {
			t.Errorf("%q: user %d, group %d, %v", tt.status, user, group, err)
		}
	}
}

func FuzzParseCredentials(f *testing.F) {
	f.Add([]byte("Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if user, group, err := parseCredentials(b); err != nil && (user != 0 || group != 0) {
			t.Errorf("%q: user %d, group %d beside %v", b, user, group, err)
		}
	})
}
