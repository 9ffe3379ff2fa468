package budget

// Nearly all rids are UUIDs, which the archive keeps in 16 bytes.

// parseUUID reads the canonical form alone, which [uuid.UUID.String] gives back:
// the first and last eight bytes of the UUID, the first of each lowest.
func parseUUID(s string) (first, last uint64, ok bool) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return 0, 0, false
	}
	a, odd1 := unhex(four(s[0:]) | four(s[4:])<<32)
	b, odd2 := unhex(four(s[9:]) | four(s[14:])<<32)
	c, odd3 := unhex(four(s[19:]) | four(s[24:])<<32)
	d, odd4 := unhex(four(s[28:]) | four(s[32:])<<32)
	return a | b<<32, c | d<<32, odd1|odd2|odd3|odd4 == 0
}

func four(s string) uint64 {
	_ = s[3]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24
}

// unhex turns eight lower-case hex digits into four bytes, all in the order of
// their places, lowest first. odd is not zero for anything else.
func unhex(digits uint64) (bytes, odd uint64) {
	const ones = 0x0101010101010101
	v := digits&(ones*0x0f) + digits>>6&ones*9 // of a letter, the sixth bit is set
	letter := (v + ones*(0x80-10)) >> 7 & ones
	odd = v&(ones*0xf0) | digits ^ (v + ones*'0' + letter*('a'-'0'-10))
	v = (v<<4 | v>>8) & 0x00ff00ff00ff00ff
	v = (v | v>>8) & 0x0000ffff0000ffff
	return (v | v>>16) & 0xffffffff, odd
}
