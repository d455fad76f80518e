// The history holds what the page has seen of the last minutes, by time. Rates are between two
// answers. Where the page got no answers, such as in a hidden tab, there is a gap.

export const span = 120; // seconds
const gap = 5; // seconds between two answers without a rate
const window = 10; // seconds of requests behind a latency

const samples = []; // { at, run, status, values }, oldest first; at in seconds of the page's clock
export const starts = []; // { at, version } of proxies that started meanwhile
let run = 0;

export const latest = () => samples[samples.length - 1] || null;

// rate returns a counter's growth per second.
export function rate(now, before, seconds) {
  return before === undefined || now < before || seconds <= 0 ? null : (now - before) / seconds;
}

// quantile estimates the duration that a share of the requests between two histograms does not
// exceed, as Prometheus does. Without requests there is none.
export function quantile(share, now, before) {
  const old = new Map((before ? before.buckets : []).map((b) => [b.upToSeconds, b.count]));
  const all = now.count - (before ? before.count : 0);
  if (all <= 0 || now.buckets.length === 0) return null;
  let low = { upToSeconds: 0, count: 0 };
  for (const b of now.buckets) {
    const n = b.count - (old.get(b.upToSeconds) || 0);
    if (n >= share * all && n > low.count) {
      return low.upToSeconds + ((b.upToSeconds - low.upToSeconds) * (share * all - low.count)) / (n - low.count);
    }
    low = { upToSeconds: b.upToSeconds, count: n };
  }
  return low.upToSeconds;
}

const total = (s) => s.requests.cache + s.requests.forwarded + s.requests.refused;

// add records an answer of the proxy.
export function add(at, status) {
  const before = latest();
  if (before && status.uptimeSeconds < before.status.uptimeSeconds) {
    run++;
    starts.push({ at: at - status.uptimeSeconds, version: status.version });
  }
  const sample = { at, run, status, values: {} };
  if (before && before.run === run && at - before.at <= gap) sample.values = valuesOf(status, before.status, at - before.at, at);
  samples.push(sample);
  while (at - samples[0].at > span + gap) samples.shift();
  while (starts.length > 0 && at - starts[0].at > span) starts.shift();
  return sample;
}

function valuesOf(s, before, seconds, at) {
  const base = samples.find((old) => old.run === run && at - old.at <= window).status.latency;
  const per = (of) => rate(of(s), of(before), seconds);
  return {
    clients: per(total), upstream: per((x) => x.upstreamRequests.total),
    server: per((x) => x.errors.server), limited: per((x) => x.errors.limited), client: per((x) => x.errors.client),
    cacheHalf: quantile(0.5, s.latency.cache, base.cache), cacheMost: quantile(0.99, s.latency.cache, base.cache),
    forwardedMost: quantile(0.99, s.latency.forwarded, base.forwarded), deliveryMost: quantile(0.99, s.latency.delivery, base.delivery),
  };
}

// lines returns the pieces of a line: lists of [seconds of the page's clock, value].
export function lines(name) {
  const pieces = [];
  let last = null;
  for (const { at, run, values } of samples) {
    const value = values[name] ?? null;
    if (value !== null && last && last.run === run && at - last.at <= gap) pieces[pieces.length - 1].push([at, value]);
    else if (value !== null) pieces.push([[at, value]]);
    last = value === null ? null : { at, run };
  }
  return pieces;
}

// nearest returns the sample nearest to a time, or null in a gap.
export function nearest(at) {
  let best = null;
  for (const s of samples) {
    if (!best || Math.abs(s.at - at) < Math.abs(best.at - at)) best = s;
  }
  return best && Math.abs(best.at - at) <= gap / 2 ? best : null;
}
