"use strict";

// The page asks for the status once a second and shows it.
const every = 1000; // ms
const patience = 5000; // ms until an answer counts as lost
const span = 120; // samples in the chart

const by = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3, notation: "compact" });

let last = null; // { at, status } of the newest answer
const rows = new Map(); // table rows, by feed
const history = []; // { clients, upstream } per second

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit < units.length - 1; unit++) bytes /= 1024;
  return (unit > 0 && bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)) + " " + units[unit];
}

function age(seconds) {
  if (seconds < 60) return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min";
  if (seconds < 86400) return Math.floor(seconds / 3600) + " h " + Math.floor((seconds % 3600) / 60) + " min";
  return Math.floor(seconds / 86400) + " d " + Math.floor((seconds % 86400) / 3600) + " h";
}

// rate returns a counter's growth per second. A counter that shrank has no rate, because the proxy
// was restarted.
function rate(now, before, seconds) {
  return before === undefined || now < before || seconds <= 0 ? null : (now - before) / seconds;
}

const perSecond = (value) => (value === null ? "–" : short.format(value));

const key = (feed) => [feed.group, feed.version, feed.resource, feed.encoding].join("/");

function showSums(s) {
  const r = s.requests, u = s.upstreamRequests, m = s.memory;
  put(by("about"), `${s.version}, up ${age(s.uptimeSeconds)}, in front of ${s.upstream}`);
  put(by("ratio"), r.hitRatio === null ? "–" : (Math.floor(r.hitRatio * 1000) / 10).toFixed(1) + " %");
  put(by("saved"), whole.format(u.saved));
  put(by("saved-note"), `${whole.format(u.total)} sent: ${short.format(u.forwarded)} forwarded, ${short.format(u.feeds)} of feeds, ${short.format(u.reviews)} reviews`);
  put(by("requests"), whole.format(r.cache + r.forwarded + r.refused));
  put(by("requests-note"), `${short.format(r.cache)} from the cache, ${short.format(r.forwarded)} forwarded, ${short.format(r.refused)} refused`);
  put(by("watches"), whole.format(s.watches));
  put(by("memory"), size(m.residentBytes));
  put(by("memory-note"), (m.limitBytes ? `of ${size(m.limitBytes)}; ` : "") + `objects ${size(m.objectBytes)}, logs ${size(m.logBytes)}, derived ${size(m.derivedBytes)}`);
}

function showChart(s, before, seconds) {
  const sums = (of) => of && of.requests.cache + of.requests.forwarded + of.requests.refused;
  const sample = {
    clients: rate(sums(s), sums(before), seconds),
    upstream: rate(s.upstreamRequests.total, before && before.upstreamRequests.total, seconds),
  };
  if (sample.clients === null || sample.upstream === null) return;
  history.push(sample);
  if (history.length > span) history.shift();
  const most = Math.max(1, ...history.map((h) => Math.max(h.clients, h.upstream)));
  const points = (of) => history.map((h, i) => `${(600 * (span - history.length + i)) / (span - 1)},${78 - (76 * h[of]) / most}`).join(" ");
  by("line-clients").setAttribute("points", points("clients"));
  by("line-upstream").setAttribute("points", points("upstream"));
  put(by("rate-clients"), perSecond(sample.clients));
  put(by("rate-upstream"), perSecond(sample.upstream));
  put(by("rate-most"), perSecond(most));
  by("chart").setAttribute("aria-label", `${perSecond(sample.clients)} requests per second of clients, ${perSecond(sample.upstream)} to upstream`);
}

const labels = ["State", "Objects", "Size", "Log", "resourceVersion", "Age", "Watches", "Events/s", "Delivered/s"];

function newRow(labels) {
  const row = document.createElement("tr");
  row.setAttribute("role", "row");
  const head = document.createElement("th");
  head.setAttribute("role", "rowheader");
  head.scope = "row";
  head.append(document.createElement("span"), " ", document.createElement("small"));
  row.append(head);
  for (const label of labels) {
    const cell = document.createElement("td");
    cell.setAttribute("role", "cell");
    cell.dataset.label = label;
    if (!["State", "Verb", "Reason"].includes(label)) cell.className = "figure";
    row.append(cell);
  }
  return row;
}

function state(feed) {
  if (feed.failing) return ["failing", "lost for " + age(feed.lostSeconds)];
  return feed.synced ? ["synced", "synced"] : ["syncing", "syncing"];
}

function showFeeds(feeds, before, seconds) {
  const old = new Map((before ? before.feeds : []).map((feed) => [key(feed), feed]));
  const seen = new Set();
  feeds.forEach((feed, i) => {
    const id = key(feed), was = old.get(id) || {};
    seen.add(id);
    if (!rows.has(id)) rows.set(id, newRow(labels));
    const row = rows.get(id), [head, ...cells] = row.children;
    put(head.firstChild, feed.resource);
    put(head.lastChild, (feed.group ? feed.group + "/" : "") + feed.version + " " + feed.encoding);
    const [name, text] = state(feed);
    cells[0].className = name;
    [
      text, whole.format(feed.objects), size(feed.objectBytes), whole.format(feed.logEvents), String(feed.resourceVersion), age(feed.lastSignSeconds),
      whole.format(feed.watches), perSecond(rate(feed.events, was.events, seconds)), perSecond(rate(feed.eventsDelivered, was.eventsDelivered, seconds)),
    ].forEach((value, at) => put(cells[at], value));
    if (by("feeds").children[i] !== row) by("feeds").insertBefore(row, by("feeds").children[i] || null);
  });
  for (const [id, row] of rows) {
    if (seen.has(id)) continue;
    row.remove();
    rows.delete(id);
  }
  by("empty").hidden = feeds.length > 0;
  document.querySelector("table").hidden = feeds.length === 0;
}

const forwardedMost = 20;

function showForwarded(all) {
  const body = by("forwarded"), shown = all.slice(0, forwardedMost);
  while (body.children.length > shown.length) body.lastChild.remove();
  shown.forEach((f, i) => {
    if (!body.children[i]) body.append(newRow(["Verb", "Reason", "Requests"]));
    const [head, ...cells] = body.children[i].children;
    put(head.firstChild, f.resource || "others");
    put(head.lastChild, (f.group ? f.group + "/" : "") + f.version);
    [f.verb, f.reason, whole.format(f.count)].forEach((value, at) => put(cells[at], value));
  });
  by("forwarded-section").hidden = shown.length === 0;
}

function show(s) {
  const at = performance.now();
  const before = last && last.status, seconds = last ? (at - last.at) / 1000 : 0;
  showSums(s);
  showChart(s, before, seconds);
  showFeeds(s.feeds, before, seconds);
  showForwarded(s.forwarded);
  last = { at, status: s, clock: new Date() };
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
      connected("lost", "connection lost" + (last ? "; figures of " + last.clock.toLocaleTimeString() : ""));
    }
  }
  setTimeout(refresh, every);
}

document.addEventListener("DOMContentLoaded", refresh);
