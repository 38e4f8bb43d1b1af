// The place "Live": what the process that answers does now. It asks every two seconds while somebody looks.

import { call } from "./call.js";
import { traffic } from "./charts.js";
import { byId, duration, facts, hideAlert, make, ms, number, panel, percent, showAlert, toast } from "./dom.js";

const EVERY = 2000; // milliseconds
const ORDER = ["history", "features", "retrieve", "rank", "explain", "total"];
let timer = null;
let open = false;
let bundle = null; // what /v1/about says of the one that is served

/** Called when the place is opened. */
export function openLive() {
  open = true;
  poll();
}

/** Called when another place is opened, or the page is hidden. */
export function closeLive() {
  open = false;
  clearTimeout(timer);
}

async function poll() {
  clearTimeout(timer);
  if (!open || document.hidden) return;
  try {
    const now = await call("/v1/live");
    if (bundle?.bundle !== now.bundle) bundle = (await call("/v1/about")).bundles[0];
    show(now);
    hideAlert();
  } catch (error) {
    showAlert(error.message);
  }
  if (open) timer = setTimeout(poll, EVERY);
}

function show(now) {
  byId("live-hint").textContent = `${now.alone ? "The process that serves" : "One of the processes that serve"} (${now.process}), for ${duration(now.up)}. Asked every two seconds.`;
  byId("live-facts").replaceChildren(facts(told(now)));
  byId("live-traffic").replaceChildren(traffic(now.requests, { label: "Requests of the last minutes, second by second" }));
  byId("live-stages").replaceChildren(stages(now));
  byId("live-bundle").replaceChildren(served(now));
  byId("live-reloads").replaceChildren(reloads(now));
}

const perSecond = (seconds) => seconds.reduce((sum, [all]) => sum + all, 0) / seconds.length;
const ago = (now, then) => (then === null ? "none yet" : `${duration(Math.max(now.now - then, 0))} ago`);

function told(now) {
  const { totals, events, shares, stages: times } = now;
  const rate = perSecond(now.requests.slice(-10));
  return [
    ["Requests a second", rate >= 10 ? number(rate) : rate.toFixed(1), `${number(totals.requests)} since the start`],
    ["Half are answered in", times.total ? `${ms(times.total.p50)} ms` : "–", times.total ? `99 % in ${ms(times.total.p99)} ms` : "no answer in five minutes"],
    ["Errors", number(totals.broken), `${number(totals.refused)} requests were wrong`, totals.broken ? "bad" : ""],
    ["Cut short", percent(shares.degraded, 0), "answers without a stage that was late", shares.degraded ? "bad" : ""],
    ["Fallback", percent(shares.popular, 0), "popular items, as nothing was known"],
    ["New to the models", percent(shares.cold, 0), "of the answers, to people or sessions"],
    ["Events", number(events.accepted), `the last one ${ago(now, events.last)}${events.rejected ? `, ${number(events.rejected)} refused` : ""}`],
  ];
}

// ---- times of the stages

function stages(now) {
  const names = Object.keys(now.stages).sort((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b));
  if (!names.length) return make("p", { class: "hint", text: "Nobody has asked for a list in the last five minutes." });
  const most = Math.max(...names.map((name) => now.stages[name].p99), 0.01);
  const head = make("tr", {}, ...["Stage", "half", "95 %", "99 %"].map((text) => make("th", { text })), make("th", { class: "wide" }));
  const rows = names.map((name) => {
    const { p50, p95, p99 } = now.stages[name];
    const width = (x) => `${Math.max((100 * x) / most, 0.5)}%`;
    return make("tr", { class: name === "total" ? "sum" : null }, make("th", { text: name }), ...[p50, p95, p99].map((x) => make("td", { text: ms(x) })),
      make("td", { class: "wide" }, make("div", { class: "span", style: { "--p50": width(p50), "--p95": width(p95), "--p99": width(p99) } }, make("i"), make("i"), make("i"))));
  });
  return make("table", { class: "grid times" }, make("thead", {}, head), make("tbody", {}, ...rows));
}

// ---- the bundle

function served(now) {
  const built = bundle.about.times?.built;
  const models = [...Object.values(bundle.models.retrievers), bundle.models.ranker].filter(Boolean).join(" + ");
  return make("dl", { class: "attributes" }, ...[
    ["bundle", now.bundle], ["models", models], ["loaded", ago(now, now.loaded)],
    ["built", built ? ago(now, built) : "–"], ["learned from", `${number(bundle.data.rows)} rows`],
  ].flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value })]));
}

function reloads(now) {
  if (!now.reloads.length) return make("p", { class: "hint", text: "None since the start." });
  return make("ol", { class: "log" }, ...[...now.reloads].reverse().map(({ time, before, after }) =>
    make("li", { class: after ? null : "bad" }, make("span", { text: after ? (after === before ? `${after} again` : `${before} → ${after}`) : `refused, ${before} goes on` }), make("small", { text: ago(now, time) }))));
}

async function reload(event) {
  event.preventDefault();
  const folder = byId("reload-bundle").value.trim();
  byId("reload").disabled = true;
  try {
    const done = await call("/v1/admin/reload", folder ? { bundle: folder } : {}, byId("reload-token").value);
    toast(`Bundle ${done.bundle} answers`);
    byId("reload-said").textContent = "";
  } catch (error) {
    byId("reload-said").textContent = error.message;
  }
  byId("reload").disabled = false;
  poll();
}

export function startLive() {
  byId("reload-form").addEventListener("submit", reload);
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : open && poll()));
}
