// The charts draw the history over time. One moment is marked in all of them: the legends have its
// figures. A slider chooses it, or a pointer on a chart.
import { clock, duration, element, perSecond, put, short } from "./format.js";
import { latest, lines, nearest, span, starts } from "./history.js";

const charts = [
  {
    title: "Requests per second", write: perSecond, least: 1,
    lines: [
      ["clients", "clients", "Requests of clients, from the cache or forwarded. A watch counts when it begins."],
      ["upstream", "upstream", "Requests that the apiserver got: forwarded ones, and those of the caches and of reviews."],
    ],
  },
  {
    title: "Errors per second", write: perSecond, least: 1,
    lines: [
      ["server", "server (5xx)", "Answers with a status of 500 and above, of the apiserver or the proxy. They should be 0."],
      ["limited", "limited (429)", "Answers with 429, because a limit of the proxy or the apiserver was reached."],
      ["client", "client (4xx)", "Other answers with 400 to 499. Some are usual, such as 404 for an object that does not exist."],
    ],
  },
  {
    title: "Latency", write: duration, least: 0.001,
    lines: [
      ["cacheHalf", "cache, 50 %", "Half of the answers from the cache in the ten seconds before took at most this time, without watches."],
      ["cacheMost", "cache, 99 %", "99 of 100 answers from the cache took at most this time."],
      ["forwardedMost", "forwarded, 99 %", "99 of 100 forwarded requests took at most this time. Much of it is the apiserver's."],
      ["deliveryMost", "events, 99 %", "99 of 100 events were written to a watch within this time after they had arrived."],
    ],
  },
];

const height = 150, left = 64, right = 30, top = 8, bottom = 22; // pixels
const label = 56; // pixels of a time
let chosen = null; // seconds of the page's clock; null for now

const now = () => performance.now() / 1000;
const dateOf = (at) => new Date(performance.timeOrigin + at * 1000);

function svg(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// scale returns the distance of ticks such that a few of them reach over the highest value.
export function scale(most) {
  const power = 10 ** Math.floor(Math.log10(most / 4));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n * 4 >= most * (1 - 1e-9));
  return { step, ticks: Math.ceil(most / step - 1e-9) };
}

// build makes the charts once.
export function build(into, legend) {
  for (const [index, chart] of charts.entries()) {
    chart.picture = svg("svg", { role: "img", "aria-label": chart.title + ": no figures yet", height });
    chart.values = chart.lines.map(([, name, means], i) => {
      const value = element("b", {}, "–");
      legend.append(element("dt", {}, `${chart.title}: ${name}`), element("dd", {}, means));
      return [element("li", { class: "line" + i, title: means }, name + " ", value), value];
    });
    const title = element("h3", { id: "chart" + index }, chart.title);
    into.append(element("figure", { "aria-labelledby": "chart" + index }, title, chart.picture, element("ul", { class: "legend" }, ...chart.values.map(([item]) => item))));
    for (const kind of ["pointermove", "pointerdown"]) chart.picture.addEventListener(kind, point);
    chart.picture.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && choose(null));
  }
  document.getElementById("moment").addEventListener("input", (event) => choose(event.target.value === "0" ? null : now() + Number(event.target.value)));
  new ResizeObserver(draw).observe(into);
}

function point(event) {
  const box = event.currentTarget.getBoundingClientRect();
  const part = (event.clientX - box.left - left) / (box.width - left - right);
  choose(now() - span * (1 - Math.min(1, Math.max(0, part))));
}

function choose(at) {
  chosen = at;
  draw();
}

export function draw() {
  const end = now();
  if (chosen !== null && (chosen < end - span || chosen > end)) chosen = null;
  const shown = chosen === null ? latest() : nearest(chosen);
  const back = chosen === null ? 0 : Math.round(chosen - end);
  const slider = document.getElementById("moment");
  const text = chosen === null ? "now" : `${clock(dateOf(chosen))}, ${-back} s ago` + (shown ? "" : ": no figures");
  slider.value = back;
  slider.setAttribute("aria-valuetext", text);
  put(document.getElementById("moment-text"), text);
  for (const chart of charts) drawChart(chart, end, shown ? shown.values : {});
}

function drawChart(chart, end, values) {
  const { width } = chart.picture.getBoundingClientRect();
  const pieces = chart.lines.map(([name]) => lines(name));
  const most = Math.max(chart.least, ...pieces.flat(2).map(([, value]) => value));
  const { step, ticks } = scale(most);
  const x = (at) => left + (width - left - right) * (1 - (end - at) / span);
  const y = (value) => height - bottom - ((height - bottom - top) * value) / (step * ticks);
  const drawn = [];
  for (let i = 0; i <= ticks; i++) {
    const at = y(i * step);
    drawn.push(svg("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }), svg("text", { class: "tick", x: left - 6, y: at + 4, "text-anchor": "end" }, chart.write === duration ? duration(i * step) : short(i * step)));
  }
  const tickEvery = (width - left - right) / 4 < label ? 60 : 30; // seconds
  const first = Math.ceil((performance.timeOrigin / 1000 + end - span) / tickEvery) * tickEvery - performance.timeOrigin / 1000;
  for (let at = first; at <= end; at += tickEvery) {
    drawn.push(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: top, y2: height - bottom + 4 }), svg("text", { class: "tick time", x: x(at), y: height - 4, "text-anchor": "middle" }, clock(dateOf(at))));
  }
  for (const { at, version } of starts) {
    drawn.push(svg("line", { class: "start", x1: x(at), x2: x(at), y1: top, y2: height - bottom }), svg("text", { class: "tick", x: x(at) + 4, y: top + 10 }, "started: " + version));
  }
  pieces.forEach((of, i) => {
    const visible = of.map((piece) => piece.filter(([at]) => at >= end - span)).filter((piece) => piece.length > 0);
    const d = visible.map((piece) => piece.map(([at, value], n) => `${n ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("") + (piece.length === 1 ? "h0" : "")).join("");
    drawn.push(svg("path", { class: "line" + i, d }));
  });
  if (chosen !== null) drawn.push(svg("line", { class: "chosen", x1: x(chosen), x2: x(chosen), y1: top, y2: height - bottom }));
  chart.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.picture.replaceChildren(...drawn);
  const said = chart.lines.map(([name, title], i) => {
    const written = chart.write(values[name] ?? null);
    put(chart.values[i][1], written);
    return `${title} ${written}`;
  });
  chart.picture.setAttribute("aria-label", `${chart.title}: ${said.join(", ")}`);
}
