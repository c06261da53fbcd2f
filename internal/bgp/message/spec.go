package message

// attributes has the known path attributes by type. An attribute with other Optional or Transitive
// flags is malformed (RFC 7606 section 3).
var attributes = [256]struct {
	name  string
	flags uint8
}{
	attrOrigin:          {"ORIGIN", flagTransitive},
	attrASPath:          {"AS_PATH", flagTransitive},
	attrNextHop:         {"NEXT_HOP", flagTransitive},
	attrMED:             {"MULTI_EXIT_DISC", flagOptional},
	attrLocalPref:       {"LOCAL_PREF", flagTransitive},
	attrAtomicAggregate: {"ATOMIC_AGGREGATE", flagTransitive},
	attrAggregator:      {"AGGREGATOR", flagOptional | flagTransitive},
	attrCommunities:     {"COMMUNITIES", flagOptional | flagTransitive},
	attrOriginatorID:    {"ORIGINATOR_ID", flagOptional},
	attrClusterList:     {"CLUSTER_LIST", flagOptional},
	attrReach:           {"MP_REACH_NLRI", flagOptional},
	attrUnreach:         {"MP_UNREACH_NLRI", flagOptional},
	attrExtended:        {"EXTENDED COMMUNITIES", flagOptional | flagTransitive},
	attrAS4Path:         {"AS4_PATH", flagOptional | flagTransitive},
	attrAS4Aggregator:   {"AS4_AGGREGATOR", flagOptional | flagTransitive},
	attrLarge:           {"LARGE_COMMUNITY", flagOptional | flagTransitive},
	attrPrefixSID:       {"Prefix-SID", flagOptional | flagTransitive},
}
