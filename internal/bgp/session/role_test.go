package session

import (
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/bgp/message"
)

// TestRoleRequired: where a neighbor refuses this router for its role, the report has that role.
func TestRoleRequired(t *testing.T) {
	refusal := received{message.Notification{Code: message.CodeOpen, Subcode: message.SubcodeRoleMismatch}}
	for role, want := range map[message.Role]string{"": "This router has none", message.RolePeer: "This router has peer"} {
		c := Config{Capabilities: message.Capabilities{Role: role}}
		if _, text := c.openFinding(refusal); !strings.Contains(text, "Role Mismatch (2/11); which role (RFC 9234) does it require? "+want) {
			t.Error(text)
		}
	}
}
