// The place "Runs": what was trained for the bundles, one run or two beside each other, and what the report measured.

import { call } from "./call.js";
import { lines, whiskers } from "./charts.js";
import { byId, duration, facts, figure, hideAlert, make, nothing, number, panel, percent, showAlert } from "./dom.js";

const COLORS = ["var(--series-1)", "var(--series-2)"];
const SEGMENTS = { low: "few items", middle: "some items", high: "many items", cold: "nothing known" };
const chosen = { first: 0, second: -1, differing: true };
let bundles = [];

/** Called when the place is opened. */
export async function openRuns() {
  try {
    bundles = (await call("/v1/about")).bundles;
    hideAlert();
  } catch (error) {
    return showAlert(error.message);
  }
  show();
}

function allRuns() {
  return bundles.flatMap((bundle, i) => (bundle.about.runs?.runs ?? []).map((run) => ({
    ...run, times: bundle.about.times?.runs?.[run.name], bundle: bundle.bundle, label: i ? `${run.name} · the bundle beside` : run.name,
  })));
}

function show() {
  const runs = allRuns();
  if (!runs.length) return byId("runs").replaceChildren(heading(), nothing("This bundle was built without its runs. A recipe's bundle has them:", "falconet run RECIPE --out work"));
  chosen.first = Math.min(chosen.first, runs.length - 1);
  if (chosen.second >= runs.length) chosen.second = -1;
  const pair = [runs[chosen.first], ...(chosen.second < 0 ? [] : [runs[chosen.second]])];
  const focused = document.activeElement?.id;
  byId("runs").replaceChildren(heading(), choices(runs), summary(pair), make("div", { class: "panels" }, ...curves(pair)), settings(pair), ...measured());
  if (focused) document.getElementById(focused)?.focus();
}

function heading() {
  const names = bundles.length ? `What was trained for bundle ${bundles[0].bundle}${bundles[1] ? ` and for ${bundles[1].bundle} beside it` : ""}.` : "";
  return make("header", { class: "lead" }, make("div", {}, make("h2", { text: "Runs" }), make("p", { class: "hint", text: names })));
}

function choices(runs) {
  const pick = (id, label, value, options, change) =>
    make("label", { class: "field" }, make("span", { text: label }),
      make("select", { id, on: { change: (event) => { change(Number(event.target.value)); show(); } } },
        ...options.map(([index, text]) => make("option", { value: index, selected: index === value, text }))));
  const all = runs.map((run, i) => [i, run.name === run.model ? run.label : `${run.label} (${run.model})`]);
  return make("div", { class: "choices" },
    pick("run-first", "Run", chosen.first, all, (i) => { chosen.first = i; }),
    pick("run-second", "Beside it", chosen.second, [[-1, "none"], ...all], (i) => { chosen.second = i; }));
}

function summary(pair) {
  return make("div", { class: "pair-facts" }, ...pair.map((run, i) => {
    const losses = run.epochs.map(({ loss }) => loss);
    const rates = Object.values(run.times?.rows_per_s ?? {});
    const where = [run.times?.device, run.times?.precision, run.times?.world > 1 ? `${run.times.world} processes` : null].filter(Boolean).join(", ");
    const told = losses.length
      ? [
        ["Epochs", number(losses.length), run.best ? `best: ${run.best}` : "the last one counts"],
        ["Loss", figure(losses.at(-1)), `from ${figure(losses[0])}`],
        ["Time", run.times?.seconds ? duration(run.times.seconds) : "–", where],
        ["Rows a second", rates.length ? number(rates.reduce((a, b) => a + b) / rates.length) : "–", `${number(run.epochs[0].rows)} an epoch`],
      ]
      : [["Fitted", "in one step", "a closed form: no epochs, no curve"]];
    return make("section", { style: { "--c": COLORS[i] }, "aria-label": run.label }, make("h3", { text: run.name === run.model ? run.label : `${run.label} · ${run.model}` }), facts(told));
  }));
}

function curves(pair) {
  const names = [...new Set(pair.flatMap((run) => run.epochs.flatMap((epoch) => Object.keys(epoch.valid ?? {}))))];
  const curve = (title, hint, value, options = {}) => {
    const series = pair.map((run, i) => ({ name: run.label, color: COLORS[i], best: run.best, points: points(run, value) })).filter(({ points }) => points.length);
    return series.length ? panel(title, hint, lines(series, { label: `${title} by epoch`, xLabel: "epoch", whole: true, ...options })) : null;
  };
  return [
    curve("Loss", "of training, the mean of an epoch", (epoch) => epoch.loss),
    ...names.map((name) => curve(name, "of the validation; the large dot is the best", (epoch) => epoch.valid?.[name])),
    curve("Throughput", "rows a second, on the machine that trained", (epoch, run) => run.times?.rows_per_s?.[epoch.epoch], { zero: true }),
  ].filter(Boolean);
}

function points(run, value) {
  return run.epochs.map((epoch) => [epoch.epoch, value(epoch, run)]).filter(([, y]) => Number.isFinite(y));
}

// ---- settings

function said(value) {
  if (value === undefined) return "";
  if (value === null) return "–";
  if (typeof value !== "object") return String(value);
  const parts = Array.isArray(value) ? value.map(said) : Object.entries(value).map(([key, one]) => `${key}: ${said(one)}`);
  return parts.join(", ") || "none";
}

function settings(pair) {
  const keys = [...new Set(pair.flatMap((run) => Object.keys(run.settings)))];
  const differs = (key) => pair.length > 1 && said(pair[0].settings[key]) !== said(pair[1].settings[key]);
  const shown = pair.length > 1 && chosen.differing ? keys.filter(differs) : keys;
  const rows = shown.map((key) => make("tr", { class: differs(key) ? "differs" : null }, make("th", { text: key }), ...pair.map((run) => make("td", { text: said(run.settings[key]) }))));
  const toggle = make("label", { class: "check" }, make("input", { id: "differing", type: "checkbox", checked: chosen.differing, on: { change: (event) => { chosen.differing = event.target.checked; show(); } } }), "only what differs");
  const table = rows.length
    ? make("div", { class: "scroll tall", tabindex: 0, role: "group", "aria-label": "Settings" }, make("table", { class: "settings" },
      make("thead", {}, make("tr", {}, make("th", { text: "Setting" }), ...pair.map((run) => make("th", { text: run.label })))), make("tbody", {}, ...rows)))
    : make("p", { class: "hint", text: "No setting differs." });
  return panel("Settings", pair.length > 1 ? `${keys.filter(differs).length} of ${keys.length} differ` : `${keys.length} settings`, ...(pair.length > 1 ? [toggle] : []), table);
}

// ---- what the report measured

function measured() {
  return bundles.flatMap((bundle, i) => {
    const report = bundle.about.runs?.report;
    if (i && !bundle.about.runs) return [];
    const title = i ? "What they are worth: the bundle beside" : "What they are worth";
    if (!report) return [panel(title, "", nothing("The models were not evaluated before the bundle was built. A refresh does not do that: its refresh.json says how the new bundle did beside the old one.", "falconet evaluate RECIPE --out work"))];
    const hint = `of ${number(report.users)} people with something in the test (split: ${report.split}); lines are 95 % intervals`;
    const worth = Object.keys(Object.values(report.models)[0].ranking).map((metric) => panel(metric, hint, worthOf(report, metric)));
    return [make("h2", { class: "part", text: title }), make("div", { class: "panels" }, ...worth, bySegment(report), ...calibration(report), recall(bundle))];
  });
}

function worthOf(report, metric) {
  const rows = Object.entries(report.models).map(([name, { ranking }]) => ({ name, ...ranking[metric], strong: name === report.best })).filter(({ value }) => value !== null);
  return whiskers(rows, { label: `${metric} of each model`, format: (x) => (x ?? NaN).toFixed(4) });
}

/** How good the lists are for people of whom much or little is known. */
function bySegment(report) {
  const metric = `ndcg@${report.k}`;
  const segments = Object.entries(report.segments).filter(([, { users }]) => users);
  const head = make("tr", {}, make("th", { text: "Model" }), ...segments.map(([name, { users, seen }]) =>
    make("th", { title: seen ? `${seen[0]} to ${seen[1]} items` : null }, SEGMENTS[name] ?? name, make("small", { text: `${number(users)} people` }))));
  const best = segments.map(([name]) => Math.max(...Object.values(report.models).map((one) => one.users[name]?.[metric]?.value ?? 0)));
  const rows = Object.entries(report.models).map(([model, one]) => make("tr", {}, make("th", { text: model }), ...segments.map(([name], i) => {
    const value = one.users[name]?.[metric]?.value;
    return make("td", { class: value !== undefined && value === best[i] ? "best" : null, text: value === undefined || value === null ? "–" : value.toFixed(4) });
  })));
  return panel("By what people did", `${metric}, for people with few and with many items in training`,
    make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "By what people did" }, make("table", { class: "grid" }, make("thead", {}, head), make("tbody", {}, ...rows))));
}

function calibration(report) {
  const ranker = report.ranker;
  if (!ranker?.curve?.length) return [];
  const points = ranker.curve.map(({ predicted, happened }) => [predicted, happened]);
  const most = Math.max(...points.flat());
  const told = `AUC ${figure(ranker.auc)}, within people ${figure(ranker.gauc)}, expected calibration error ${figure(ranker.ece)}`;
  return [panel("Calibration of the ranker", `what it says against what happened; ${told}`,
    lines([{ name: "happened", color: COLORS[0], points }], {
      label: "Calibration", xLabel: "predicted", zero: true, yFormat: (x) => percent(x, 0), extra: [{ points: [[0, 0], [most, most]] }],
    }))];
}

function recall(bundle) {
  const told = Object.entries(bundle.recall ?? {});
  return panel("Index", `${number(bundle.candidates)} candidates of ${number(bundle.items)} items`,
    make("p", { class: "prose", text: told.length
      ? told.map(([name, share]) => `The approximate index of ${name} finds ${percent(share)} of the exact candidates.`).join(" ")
      : "The search is exact: it finds every candidate there is (recall 1)." }));
}
