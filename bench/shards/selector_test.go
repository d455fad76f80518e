package shards

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
)

// span is a range of hashes, without its end. An end of 0 is 2^64.
type span struct{ start, end uint64 }

func (s span) has(hash uint64) bool { return hash >= s.start && (hash < s.end || s.end == 0) }

// shard selects objects.
type shard struct {
	byNamespace bool
	spans       []span
	text        string // as a client spells it
}

// hashOf is the hash that selectors use.
func hashOf(value string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(value))
	return h.Sum64()
}

// has reports whether an object is selected.
func (s shard) has(uid, namespace string) bool {
	hash := hashOf(uid)
	if s.byNamespace {
		hash = hashOf(namespace)
	}
	return s.hasHash(hash)
}

func (s shard) hasHash(hash uint64) bool {
	return slices.ContainsFunc(s.spans, func(s span) bool { return s.has(hash) })
}

// share returns the i-th of n equal shares of all objects.
func share(i, n int) shard {
	const all = 1 << 63
	step := uint64(all) / uint64(n) * 2                               //nolint:gosec // small
	s := shard{spans: []span{{step * uint64(i), step * uint64(i+1)}}} //nolint:gosec // small
	if i == n-1 {
		s.spans[0].end = 0
	}
	s.text = plainly(s)
	return s
}

// comb returns one of two disjoint halves of all objects. Each has 16 ranges, which begin or end
// within the 64ths of the hashes by which the proxy finds the watches of an event.
func comb(second bool) (s shard) {
	const tooth, part = 1 << 60, 3 << 57
	for i := range uint64(16) {
		if second {
			s.spans = append(s.spans, span{i*tooth + part, (i + 1) * tooth}) // the last one ends at 2^64
		} else {
			s.spans = append(s.spans, span{i * tooth, i*tooth + part})
		}
	}
	s.text = plainly(s)
	return s
}

// drawShard draws a selector. Some ranges begin or end at the hashes of values.
func drawShard(random *rand.Rand, uids, namespaces []string) shard {
	if random.IntN(8) == 0 {
		return comb(random.IntN(2) == 0)
	}
	s := shard{byNamespace: random.IntN(4) == 0}
	values := uids
	if s.byNamespace {
		values = namespaces
	}
	const most = 4
	for n := 1 + random.IntN(most); len(s.spans) < n; {
		s.spans = append(s.spans, drawSpans(random, values)...)
	}
	s.spans = s.spans[:min(len(s.spans), most)]
	if random.IntN(3) == 0 {
		s.text = plainly(s)
	} else {
		s.text = spell(random, s)
	}
	return s
}

func drawSpans(random *rand.Rand, values []string) []span {
	hash := hashOf(values[random.IntN(len(values))])
	four := []uint64{random.Uint64(), random.Uint64(), random.Uint64(), random.Uint64() | 1}
	slices.Sort(four)
	switch random.IntN(8) {
	case 0: // everything
		return []span{{0, 0}}
	case 1: // adjacent
		return []span{{four[0], four[1]}, {four[1], four[3]}}
	case 2: // overlapping
		return []span{{four[0], four[2]}, {four[1], four[3]}}
	case 3: // one hash, or one beside it
		at := hash - 1 + random.Uint64N(3)
		return []span{{at, at + 1}}
	case 4: // up to a hash
		return []span{{0, max(hash, 1)}}
	case 5: // from a hash on
		return []span{{hash, 0}}
	case 6:
		n := 1 + random.IntN(8)
		return share(random.IntN(n), n).spans
	}
	return []span{{four[0], four[3]}}
}

// plainly spells a selector as the apiserver does.
func plainly(s shard) string {
	var calls []string
	for _, r := range s.spans {
		calls = append(calls, fmt.Sprintf("shardRange(%s, '%s', '%s')", s.field(), hex(r.start, false), hex(r.end, true)))
	}
	return strings.Join(calls, " || ")
}

func (s shard) field() string {
	if s.byNamespace {
		return "object.metadata.namespace"
	}
	return "object.metadata.uid"
}

func hex(hash uint64, isEnd bool) string {
	if isEnd && hash == 0 {
		return "0x10000000000000000"
	}
	return fmt.Sprintf("0x%016x", hash)
}

// spell spells a selector in one of the ways that CEL allows.
func spell(random *rand.Rand, s shard) string {
	oneOf := func(all ...string) string { return all[random.IntN(len(all))] }
	space := func() string {
		return oneOf("", "", "", " ", "  ", "\n", "\t", "\r\n", "\f", " // a note: ' \" ) ||\n")
	}
	literal := func(text string) string {
		switch random.IntN(6) {
		case 0:
			text = oneOf(`\x30`, `\u0030`, `\U00000030`, `\060`, `\X30`) + text[1:]
		case 1:
			quote := oneOf(`'`, `"`, `'''`, `"""`)
			return oneOf("r", "R") + quote + text + quote
		}
		quote := oneOf(`'`, `'`, `"`, `"`, `'''`, `"""`)
		return quote + text + quote
	}
	field := func() string {
		path := strings.Split(s.field(), ".")
		switch random.IntN(4) {
		case 0:
			return "(" + path[0] + "." + path[1] + ")." + path[2]
		case 1:
			return strings.Join(path, space()+"."+space())
		}
		return s.field()
	}
	text := ""
	for i, r := range s.spans {
		call := oneOf("", "", "", "", "any.") + "shardRange" + space() + "(" + space() + field() + space() + "," + space() + literal(hex(r.start, false)) +
			space() + "," + space() + literal(hex(r.end, true)) + space() + ")"
		if random.IntN(4) == 0 {
			call = "(" + space() + call + space() + ")"
		}
		switch {
		case i == 0:
			text = call
		case random.IntN(4) == 0:
			text = "(" + text + space() + "||" + space() + call + ")"
		default:
			text += space() + "||" + space() + call
		}
	}
	return space() + text + space()
}

// parameter returns the parameter with a selector. It needs no more escapes than those that HTTP
// demands, and may have more.
func parameter(random *rand.Rand, text string) string {
	name := "shardSelector"
	switch random.IntN(6) {
	case 0:
		return name + "=" + strings.NewReplacer("%28", "(", "%29", ")", "%27", "'", "%2C", ",", "%7C", "|").Replace(url.QueryEscape(text))
	case 1:
		name = "shard%53elector"
	case 2:
		return name + "=" + strings.ReplaceAll(url.QueryEscape(text), "+", "%20")
	}
	return name + "=" + url.QueryEscape(text)
}

// queryOf returns a selector as the value of a parameter.
func queryOf(s shard) string { return url.QueryEscape(s.text) }

// badSelectors are selectors that are refused, or that look like it.
var badSelectors = []string{
	" ", "\n", "x", "true", "1", "''", "object.metadata.uid", "shardRange", "shardRange()", "!", "'", "(", "||", "\x00", "\xff", "☃", "//", "// x",
	"shardRange(object.metadata.uid)", "shardRange(object.metadata.uid, '0x0000000000000000')",
	"shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000', '0x8000000000000000')",
	"shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000',)",
	"shardRange(object.metadata.uid, '0x0', '0x8')", "shardRange(object.metadata.uid, '', '')",
	"shardRange(object.metadata.uid, '0x', '0x8000000000000000')", "shardRange(object.metadata.uid, '0000000000000000', '8000000000000000')",
	"shardRange(object.metadata.uid, '0X0000000000000000', '0x8000000000000000')",
	"shardRange(object.metadata.uid, '0x0000000000000000', '0xABCDEF0000000000')",
	"shardRange(object.metadata.uid, '0x0000000000000000', '0x800000000000000g')",
	"shardRange(object.metadata.uid, '0x0000000000000000', '0x10000000000000001')",
	"shardRange(object.metadata.uid, '0x00000000000000000', '0x8000000000000000')",
	"shardRange(object.metadata.uid, '0x000000000000000000', '0x8000000000000000')",
	"shardRange(object.metadata.uid, '0x8000000000000000', '0x8000000000000000')",
	"shardRange(object.metadata.uid, '0x8000000000000000', '0x0000000000000000')",
	"shardRange(object.metadata.uid, '0x10000000000000000', '0x10000000000000000')",
	"shardRange(object.metadata.uid, 0x0000000000000000, 0x8000000000000000)",
	"shardRange(object.metadata.uid, b'0x0000000000000000', b'0x8000000000000000')",
	"shardRange(object.metadata.uid, '0x00000000' + '00000000', '0x8000000000000000')",
	"shardRange(object.metadata.uid, null, '0x8000000000000000')",
	"shardRange(object.metadata.uid, ☃, '0x8000000000000000')",
	"shardRange(object.metadata.uid, '☃', '0x8000000000000000')",
	"shardRange(object.metadata.uid, '0x000000000000000☃', '0x8000000000000000')",
	"shardRange(object.metadata.name, '0x0000000000000000', '0x8000000000000000')",
	"shardRange(metadata.uid, '0x0000000000000000', '0x8000000000000000')",
	"shardRange('object.metadata.uid', '0x0000000000000000', '0x8000000000000000')",
	"shardRange(object['metadata'].uid, '0x0000000000000000', '0x8000000000000000')",
	"shardRange(.object.metadata.uid, '0x0000000000000000', '0x8000000000000000')",
	"shardRange(object.?metadata.uid, '0x0000000000000000', '0x8000000000000000')",
	"shardRange(object.`metadata`.uid, '0x0000000000000000', '0x8000000000000000')",
	"shardRange(object.metadata.uid(), '0x0000000000000000', '0x8000000000000000')",
	"shardRange(object.metadata.uid{}, '0x0000000000000000', '0x8000000000000000')",
	".shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')",
	"ShardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')",
	"has(object.metadata.uid)", "[1].all(x, x)", "size('x')", "a && b", "a == b", "a ? b : c", "[a]", "{a: b}", "T{a: b}",
	"shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000') && shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')",
	"shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000') || true",
	"!shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')",
	"shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000') | shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')",
	"shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000') || shardRange(object.metadata.namespace, '0x0000000000000000', '0x8000000000000000')",
	"shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000') ||",
	"shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000'))",
	"shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000'); x",
	"shardRange(object.metadata.uid, '0x0000000000000000\n', '0x8000000000000000')",
	`shardRange(object.metadata.uid, '0x0000000000000000\q', '0x8000000000000000')`,
	`shardRange(object.metadata.uid, '\ud800', '0x8000000000000000')`,
	`shardRange(object.metadata.uid, r'\x30x000000000000000', '0x8000000000000000')`,
	strings.Repeat("(", 200) + "x" + strings.Repeat(")", 200), strings.Repeat("(", 300), strings.Repeat("x", 4000),
	strings.Repeat("a.", 300) + "b", strings.Repeat("x || ", 200) + "x", "shardRange(in, '', '')", "for", "while()",
}

// misspell changes a byte of a selector, which then may be good or bad.
func misspell(random *rand.Rand, text string) string {
	at := random.IntN(len(text))
	const bytes = "0x'\"\\(),|. abr/_\n9"
	by := string(bytes[random.IntN(len(bytes))])
	switch random.IntN(4) {
	case 0:
		return text[:at] + text[at+1:]
	case 1:
		return text[:at] + by + text[at:]
	case 2:
		return text[:at] + text[at:at+1] + text[at:]
	}
	return text[:at] + by + text[at+1:]
}
