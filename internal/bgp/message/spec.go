package message

// attributes has the known path attributes by type.
var attributes = [256]struct {
	name string
	// An attribute with other Optional or Transitive flags is malformed (RFC 7606 section 3).
	flags uint8
	// malformed is what is done about a malformed value (RFC 7606 section 7).
	malformed Action
	// unit is the size of the elements of the value in bytes, of which there is at least one,
	// and exactly one if single. It is 0 for attributes with a structure of their own.
	unit   int
	single bool
}{
	attrOrigin:          {"ORIGIN", flagTransitive, TreatedAsWithdraw, 1, true},
	attrASPath:          {"AS_PATH", flagTransitive, TreatedAsWithdraw, 0, false},
	attrNextHop:         {"NEXT_HOP", flagTransitive, TreatedAsWithdraw, 4, true},
	attrMED:             {"MULTI_EXIT_DISC", flagOptional, TreatedAsWithdraw, 4, true},
	attrLocalPref:       {"LOCAL_PREF", flagTransitive, TreatedAsWithdraw, 4, true},
	attrAtomicAggregate: {"ATOMIC_AGGREGATE", flagTransitive, Discarded, 0, false},
	attrAggregator:      {"AGGREGATOR", flagOptional | flagTransitive, Discarded, 0, false},
	attrCommunities:     {"COMMUNITIES", flagOptional | flagTransitive, TreatedAsWithdraw, 4, false},
	attrOriginatorID:    {"ORIGINATOR_ID", flagOptional, TreatedAsWithdraw, 4, true},
	attrClusterList:     {"CLUSTER_LIST", flagOptional, TreatedAsWithdraw, 4, false},
	attrReach:           {"MP_REACH_NLRI", flagOptional, 0, 0, false},
	attrUnreach:         {"MP_UNREACH_NLRI", flagOptional, 0, 0, false},
	attrExtended:        {"EXTENDED COMMUNITIES", flagOptional | flagTransitive, TreatedAsWithdraw, 8, false},
	attrAS4Path:         {"AS4_PATH", flagOptional | flagTransitive, Discarded, 0, false}, // RFC 6793 section 6
	attrAS4Aggregator:   {"AS4_AGGREGATOR", flagOptional | flagTransitive, Discarded, 8, true},
	attrLarge:           {"LARGE_COMMUNITY", flagOptional | flagTransitive, TreatedAsWithdraw, 12, false}, // RFC 8092 section 6
	attrOnlyToCustomer:  {"ONLY_TO_CUSTOMER", flagOptional | flagTransitive, TreatedAsWithdraw, 4, true},  // RFC 9234 section 5
	attrPrefixSID:       {"Prefix-SID", flagOptional | flagTransitive, Discarded, 0, false},               // RFC 9252 section 7
}
