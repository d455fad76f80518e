package config

import (
	"slices"
	"testing"
)

func TestFixed(t *testing.T) {
	for text, want := range map[string][]string{
		"":                                       nil,
		"drain: 7s":                              nil,
		"logLevel: debug":                        nil,
		"goawayChance: 0.01":                     nil,
		"accessLogSampling: 1":                   nil,
		"adminAuthentication: {mode: delegated}": {"adminAuthentication.mode"},
		"adminAuthentication: {alwaysAllowPaths: [/livez]}":                                                        {"adminAuthentication.alwaysAllowPaths"},
		"limits: {maxConnections: 7, maxWatchesPerIdentity: 7}":                                                    nil,
		"authorization: {watchRecheckInterval: 7s}":                                                                nil,
		"cache: {exclude: [pods], resources: [{name: nodes, aggregated: true}], log: {maxAge: 7s, maxBytes: 7Mi}}": nil,
		"cache: {syncTimeout: 7s, maxStaleness: 7s, consistentReads: {ledger: false}}":                             nil,
		"listen: 127.0.0.1:7\nadminListen: 127.0.0.1:8":                                                            {"listen", "adminListen"},
		"tls: {certFile: a, privateKeyFile: b}":                                                                    {"tls"},
		"upstream: {context: a}":                                                                                   {"upstream.context"},
		"limits: {maxForwardsInFlight: 7, maxConnections: 7}":                                                      {"limits.maxForwardsInFlight"},
		"cache: {selfCheckInterval: 7s}\ndrain: 7s":                                                                {"cache.selfCheckInterval"},
		"memoryBudget: 1Gi": {"memoryBudget"},
		"cache: {scopes: [{resources: [pods], warm: true}]}": {"cache.scopes[].warm"},
		"cache: {scopes: [{resources: [pods]}]}":             nil,
		"views: [{name: slim, fields: [spec]}]":              {"views"},
		"authorization: {webhook: {cacheAuthorizedTTL: 7s}}": {"authorization.webhook.cacheAuthorizedTTL"},
	} {
		wanted, err := load(t, head+text+"\n")
		if err != nil {
			t.Fatal(err)
		}
		if got := Fixed(Default(), wanted); !slices.Equal(got, want) {
			t.Errorf("%q: %q cannot change, want %q", text, got, want)
		}
		if got := Fixed(wanted, Default()); len(want) == 0 && len(got) != 0 {
			t.Errorf("%q, taken back: %q cannot change", text, got)
		}
	}
}
