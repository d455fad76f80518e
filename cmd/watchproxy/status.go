package main

import (
	"time"

	"github.com/watchproxy/watchproxy/watchcache/upstream"
)

// status is what /status shows.
type status struct {
	Version  string       `json:"version"`
	Upstream string       `json:"upstream"`
	Feeds    []feedStatus `json:"feeds"`
}

type feedStatus struct {
	Group           string  `json:"group"`
	Version         string  `json:"version"`
	Resource        string  `json:"resource"`
	Encoding        string  `json:"encoding"`
	Synced          bool    `json:"synced"`
	Failing         bool    `json:"failing"`
	LostSeconds     float64 `json:"lostSeconds"`
	ResourceVersion uint64  `json:"resourceVersion"`
	OldestVersion   uint64  `json:"oldestResourceVersion"`
	LastSignSeconds float64 `json:"lastSignSeconds"`
	Objects         int     `json:"objects"`
	ObjectBytes     int64   `json:"objectBytes"`
	LogEvents       int     `json:"logEvents"`
	LogBytes        int64   `json:"logBytes"`
	Watches         int     `json:"watches"`
	Events          uint64  `json:"events"`
	Delivered       uint64  `json:"eventsDelivered"`
}

func statusOf(host string, feeds *upstream.Feeds) status {
	s := status{Version: version, Upstream: host, Feeds: []feedStatus{}}
	for _, f := range feeds.Status() {
		s.Feeds = append(s.Feeds, feedStatus{
			Group: f.GVR.Group, Version: f.GVR.Version, Resource: f.GVR.Resource, Encoding: f.Encoding.String(),
			Synced: f.Ready, Failing: f.Lost > 0, LostSeconds: f.Lost.Seconds(),
			ResourceVersion: f.ResourceVersion, OldestVersion: f.Since,
			LastSignSeconds: time.Since(f.LastSign).Seconds(),
			Objects:         f.Objects, ObjectBytes: f.Bytes,
			LogEvents: f.LogEvents, LogBytes: f.LogBytes,
			Watches: f.Cursors, Events: f.Events, Delivered: f.Delivered,
		})
	}
	return s
}
