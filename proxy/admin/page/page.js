// The page asks for the status once a second and shows it.
import { build, draw } from "./charts.js";
import { age, clock, count, perSecond, put, short, size } from "./format.js";
import { add, latest, rate } from "./history.js";
import { filter, Table } from "./tables.js";

const every = 1000; // ms
const patience = 5000; // ms until an answer counts as lost

const by = (id) => document.getElementById(id);

const feeds = new Table("feeds", by("feeds-section"), [
  ["Resource", "The resource that a cache holds, with its API group, version and encoding.", "text"],
  ["State", "Synced: the cache follows the apiserver. Syncing: it is being filled. Lost: the apiserver does not send its events.", "text"],
  ["Objects", "Cached objects.", "figure"],
  ["Size", "Bytes of the cached objects, as the apiserver sent them.", "figure"],
  ["Log", "Events that are kept, from which watches resume.", "figure"],
  ["resourceVersion", "The newest resourceVersion that the cache has reached.", "figure"],
  ["Age", "Time since the apiserver's last event, bookmark or answer for this cache.", "figure"],
  ["Watches", "Watches of clients that this cache serves now.", "figure"],
  ["Events/s", "Events per second from the apiserver.", "figure"],
  ["Delivered/s", "Events per second to all watches of clients.", "figure"],
]);
const forwarded = new Table("forwarded", by("forwarded-section"), [
  ["Resource", "The resource of requests that the apiserver answered.", "text"],
  ["Verb", "What the requests did.", "text"],
  ["Reason", "Why the cache did not answer. The help of watchproxy_forwarded_total in /metrics has all reasons.", "text"],
  ["Requests", "Requests in the last five minutes.", "figure"],
], 20);

const group = (of) => (of.group ? of.group + "/" : "") + of.version;

function showSums(s) {
  const r = s.requests, u = s.upstreamRequests, m = s.memory, e = s.errors;
  put(by("about"), `${s.version}, up ${age(s.uptimeSeconds)}, in front of ${s.upstream}`);
  put(by("ratio"), r.hitRatio === null ? "–" : (Math.floor(r.hitRatio * 1000) / 10).toFixed(1) + " %");
  put(by("saved"), size(u.savedBytes));
  put(by("saved-note"), `${count(u.saved)} requests`);
  put(by("sent"), `sent: ${short(u.forwarded)} forwarded, ${short(u.feeds)} of feeds, ${short(u.reviews)} reviews`);
  put(by("requests"), count(r.cache + r.forwarded + r.refused));
  put(by("requests-note"), `${short(r.cache)} from the cache, ${short(r.forwarded)} forwarded, ${short(r.refused)} refused`);
  put(by("views-note"), (s.unfoundFields || [])
    .map(f => `no ${f.field} of the view ${f.view} in a sample of ${f.resources.join(", ")}`).join(", "));
  put(by("failed"), count(e.server + e.limited));
  put(by("failed-note"), `${short(e.server)} server errors, ${short(e.limited)} limited`);
  put(by("watches"), count(s.watches));
  put(by("memory"), size(m.residentBytes));
  put(by("memory-note"), (m.limitBytes ? `of ${size(m.limitBytes)}; ` : "") + `objects ${size(m.objectBytes)}, logs ${size(m.logBytes)}, derived ${size(m.derivedBytes)}`);
}

function state(feed) {
  if (feed.failing) return ["lost for " + age(feed.lostSeconds), "failing"];
  return feed.synced ? ["synced", "synced"] : ["syncing", "syncing"];
}

const feedID = (feed) => [feed.group, feed.version, feed.resource, feed.encoding].join("/");

function showFeeds(now, before, seconds) {
  const old = new Map((before ? before.feeds : []).map((feed) => [feedID(feed), feed]));
  feeds.show(now.feeds.map((feed) => {
    const id = feedID(feed), was = old.get(id) || {};
    const [text, name] = state(feed);
    const events = rate(feed.events, was.events, seconds), delivered = rate(feed.eventsDelivered, was.eventsDelivered, seconds);
    return {
      id, head: feed.resource, small: group(feed) + " " + feed.encoding,
      cells: [
        [text, text, name], [count(feed.objects), feed.objects], [size(feed.objectBytes), feed.objectBytes], [count(feed.logEvents), feed.logEvents],
        [String(feed.resourceVersion), feed.resourceVersion], [age(feed.lastSignSeconds), feed.lastSignSeconds], [count(feed.watches), feed.watches],
        [perSecond(events), events], [perSecond(delivered), delivered],
      ],
    };
  }));
  by("empty").hidden = now.feeds.length > 0;
}

function showForwarded(all) {
  forwarded.show(all.map((f) => ({
    id: [f.group, f.version, f.resource, f.verb, f.reason].join("/"), head: f.resource || "others", small: group(f),
    cells: [f.verb, f.reason, [count(f.count), f.count]],
  })));
  by("forwarded-section").hidden = all.length === 0;
}

function show(s) {
  const before = latest();
  const now = add(performance.now() / 1000, s);
  const same = before && before.run === now.run ? before : null; // the same process
  showSums(s);
  showFeeds(s, same && same.status, same ? now.at - same.at : 0);
  showForwarded(s.forwarded);
  connected("live", "live");
}

function connected(name, text) {
  by("connection").className = name;
  put(by("connection"), text);
  document.body.classList.toggle("stale", name === "lost");
}

async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch("status", { cache: "no-store", signal: AbortSignal.timeout(patience) });
      if (!answer.ok) throw new Error(answer.status);
      show(await answer.json());
    } catch {
      const last = latest();
      connected("lost", "connection lost" + (last ? "; figures of " + clock(new Date(performance.timeOrigin + last.at * 1000)) : ""));
    }
    draw();
  }
  setTimeout(refresh, every);
}

build(by("charts"), by("lines"));
by("filter").addEventListener("input", (event) => filter(event.target.value));
refresh();
