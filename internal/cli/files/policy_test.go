package files

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestPolicyExamples reads the examples of docs/operations.md as one file.
func TestPolicyExamples(t *testing.T) {
	page, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Policy\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var peer, router, reflector strings.Builder
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(section, -1)
	for _, b := range blocks {
		switch text := b[1]; {
		case strings.HasPrefix(text, "      "):
			peer.WriteString(text)
		case strings.HasPrefix(text, "  listen:"):
			reflector.WriteString(text)
		default:
			router.WriteString(text)
		}
	}
	file, err := Parse("operations.md", []byte(`asbr:
  asn: 65000
  router_id: 192.0.2.1
  address: 2001:db8:1::1
  locator: {prefix: "fc00:0:1::/48"}
  prefixes: [2001:db8:1::/48]
  reflectors: [{address: "2001:db8:1::fe"}]
`+router.String()+`  peers:
    - name: transit-a
      asn: 64501
      address: 2001:db8:2::1
      interface: eth1
      id: 1
      table: 101
      rt: "65000:101"
`+peer.String()+`reflector:
  asn: 65000
  router_id: 192.0.2.254
  address: 2001:db8:1::fe
`+reflector.String()))
	if err != nil || len(file.Warnings) > 0 {
		t.Fatal(err, file)
	}
	a := file.ASBR
	if len(blocks) != 6 || len(a.Peers[0].ImportRules) != 4 || len(a.Peers[0].ExportRules) != 1 || len(a.PrefixLists["customers"]) != 3 ||
		len(a.RPKI.Caches) != 2 || a.Peers[0].MaxPrefixes.Limit == 0 || len(file.Reflector.Listen) != 1 {
		t.Errorf("%d examples: %+v", len(blocks), a)
	}
}
