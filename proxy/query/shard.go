package query

import (
	"fmt"

	"k8s.io/apimachinery/pkg/sharding"
	parser "k8s.io/apiserver/pkg/sharding"
)

// shardMost is the longest shard selector, in bytes. It has room for 50 ranges. The parser needs
// about a microsecond for three bytes.
const shardMost = 4 << 10

// ParseShard parses a shard selector (KEP-5866). Its error is that of kube-apiserver, unless the
// selector is too long.
func ParseShard(selector string) (sharding.Selector, error) {
	if len(selector) > shardMost {
		return nil, fmt.Errorf("invalid shard selector: longer than %d bytes, and watchproxy takes no longer ones", shardMost)
	}
	s, err := parser.Parse(selector)
	if err != nil {
		return nil, fmt.Errorf("invalid shard selector: %w", err)
	}
	return s, nil
}
