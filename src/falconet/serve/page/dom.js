// Elements, numbers and messages. Whatever comes from data is put in as text, never as HTML.

export const byId = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; a child may be text. `text`, `on` and `style` are not attributes. */
export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same inside an <svg>. */
export function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, { text, on = {}, style = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  for (const [name, value] of Object.entries(style)) element.style.setProperty(name, String(value));
  for (const [event, work] of Object.entries(on)) element.addEventListener(event, work);
  if (text !== undefined) element.textContent = text;
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// ---- numbers for people

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

export const number = (x) => whole.format(x);
export const compact = (x) => short.format(x);
export const figure = (x) => (x === null || x === undefined ? "–" : Math.abs(x) >= 10_000 ? whole.format(x) : digits.format(x));
export const percent = (x, places = 1) => (x === null || x === undefined ? "–" : `${(100 * x).toFixed(places)} %`);
export const ms = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2));

/** Seconds as people say them. */
export function duration(seconds) {
  if (seconds < 0.0995) return `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const [size, unit, lower] = seconds < 3600 ? [60, "min", "s"] : seconds < 86400 ? [3600, "h", "min"] : [86400, "d", "h"];
  const parts = { s: 1, min: 60, h: 3600 };
  const rest = Math.floor((seconds % size) / parts[lower]);
  return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${lower}` : ""}`;
}

/** A moment in the data, whose unit nobody wrote down: seconds to nanoseconds since 1970, or text. */
export function day(value) {
  if (value === null || value === undefined) return null;
  if (typeof value === "string") return value.slice(0, 10);
  const milliseconds = [1e3, 1, 1e-3, 1e-6].map((factor) => value * factor).find((x) => x > 1e11 && x < 5e12);
  return milliseconds === undefined ? String(value) : new Date(milliseconds).toISOString().slice(0, 10);
}

// ---- messages

export function showAlert(text) {
  byId("alert-text").textContent = text;
  byId("alert").hidden = false;
}

export function hideAlert() {
  byId("alert").hidden = true;
}

let toastTimer;
export function toast(text) {
  byId("toast").textContent = text;
  byId("toast").classList.add("shown");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => byId("toast").classList.remove("shown"), 2600);
}

/** What stands where there is nothing to show: a sentence, and a command that helps. */
export function nothing(text, command) {
  return make("div", { class: "empty" }, make("p", { text }), command ? make("pre", { text: command }) : null);
}

/** A box with a heading, and what it is about. */
export function panel(title, hint, ...children) {
  const heading = make("header", {}, make("h3", { text: title }), hint ? make("p", { class: "hint", text: hint }) : null);
  return make("section", { class: "panel" }, heading, ...children);
}

/** Facts in a row: what, how much, and a word on it. */
export function facts(list) {
  return make("dl", { class: "tiles" }, ...list.map(([name, value, more, kind]) =>
    make("div", { class: kind ?? "" }, make("dt", { text: name }), make("dd", { text: value }), more ? make("dd", { class: "more", text: more }) : null)));
}
