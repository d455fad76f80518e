// How the page writes figures.

const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { maximumSignificantDigits: 3, notation: "compact" });

export const count = (value) => whole.format(value);
export const short = (value) => compact.format(value);
export const perSecond = (value) => (value === null ? "–" : short(value));
export const clock = (at) => at.toLocaleTimeString("en-GB");

export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit < units.length - 1; unit++) bytes /= 1024;
  return (unit > 0 && bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)) + " " + units[unit];
}

export function age(seconds) {
  if (seconds < 60) return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min";
  if (seconds < 86400) return Math.floor(seconds / 3600) + " h " + Math.floor((seconds % 3600) / 60) + " min";
  return Math.floor(seconds / 86400) + " d " + Math.floor((seconds % 86400) / 3600) + " h";
}

export function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds === 0) return "0";
  if (seconds >= 1) return short(seconds) + " s";
  return seconds >= 1e-3 ? short(seconds * 1e3) + " ms" : short(seconds * 1e6) + " µs";
}

export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
