// The place "Data": what the models learned from, column by column, and the workflow that made it.

import { call } from "./call.js";
import { graph, histogram, lines } from "./charts.js";
import { byId, compact, day, duration, facts, figure, hideAlert, make, nothing, number, panel, percent, showAlert } from "./dom.js";

/** Called when the place is opened. */
export async function openData() {
  let bundle;
  try {
    bundle = (await call("/v1/about")).bundles[0];
    hideAlert();
  } catch (error) {
    return showAlert(error.message);
  }
  const data = bundle.about.data;
  const parts = data
    ? [summary(bundle, data), spread(data), ...weekly(data.weeks), ...data.tables.map(table), workflow(data.workflow, bundle.about.times?.steps ?? {}), ...checked(data.same_features)]
    : [nothing("This bundle was built without a summary of its data. A recipe's bundle has one:", "falconet run RECIPE --out work")];
  byId("data").replaceChildren(heading(bundle), ...parts);
}

function heading(bundle) {
  const [from, to] = [day(bundle.data.from), day(bundle.data.to)];
  const hint = from ? `What the models learned from: ${from} to ${to}.` : "What the models learned from.";
  return make("header", { class: "lead" }, make("div", {}, make("h2", { text: "Data" }), make("p", { class: "hint", text: hint })));
}

function summary(bundle, data) {
  const density = data.interactions / (data.users * data.items);
  return facts([
    ["Interactions", number(data.interactions), `${figure(100 * density)} % of all pairs`],
    ["People", number(data.users), data.activity ? `${figure(data.activity.median)} items each, in the middle` : ""],
    ["Items", number(data.items), `${percent(data.popularity.once / Math.max(data.items, 1), 0)} of them met once or never`],
    ["Half of it all", `${number(data.popularity.half)} items`, `the top 1 % has ${percent(data.popularity.top_percent, 0)}`],
  ]);
}

function spread({ popularity, activity }) {
  const curve = popularity.curve.length
    ? panel("Popularity", "interactions of an item, by its place; both axes in powers of ten",
      lines([{ name: "interactions", color: "var(--series-1)", points: popularity.curve }], { label: "Popularity of items", xLabel: "place", logX: true, logY: true, dots: false }))
    : null;
  const people = activity
    ? panel("Activity", "how many people met so many items; equal steps are equal ratios", histogram(activity, { label: "Items of a person", height: 180, color: "var(--series-2)" }))
    : null;
  return make("div", { class: "panels" }, curve, people);
}

/** Bars by the week: of everything, then of the most popular items, each by its own scale. */
function weekly(weeks) {
  if (!weeks) return [];
  const monday = (bar) => new Date(Date.parse(weeks.from) + Math.round(bar) * weeks.weeks * 7 * 86_400_000).toISOString().slice(0, 10);
  const bars = (counts, options) => histogram({ low: 0, high: counts.length - 1, counts, whole: true }, { format: monday, ...options });
  const item = ({ title, counts }) => make("article", {}, make("h4", { text: title }), make("p", { class: "hint", text: most(counts, monday) }), bars(counts, { label: `${title} by week` }));
  const hint = `interactions ${weeks.weeks === 1 ? "a week" : `in ${weeks.weeks} weeks each`}, of all items and of the most popular ones; ${most(weeks.all, monday)}`;
  return [panel("Popularity by week", hint, bars(weeks.all, { label: "Interactions by week", height: 120, color: "var(--series-2)" }), make("div", { class: "weeks" }, ...weeks.items.map(item)))];
}

function most(counts, monday) {
  const top = Math.max(...counts);
  return `at most ${number(top)}, from ${monday(counts.indexOf(top))} on`;
}

// ---- columns

function table({ name, rows, columns }) {
  const what = name === "interactions" ? `as the models read them; looked at on ${number(rows)} rows` : `as people see them, all ${number(rows)}`;
  return make("section", { "aria-label": name }, make("h2", { class: "part", text: `Columns of the ${name}` }), make("p", { class: "hint", text: what }),
    make("div", { class: "columns" }, ...columns.map(column)));
}

function column(one) {
  const values = one.cardinality ? `${number(one.cardinality)} codes` : null;
  const known = [values, one.missing ? `${percent(one.missing)} missing` : "none missing", one.unknown ? `${percent(one.unknown)} unknown` : null];
  return make("article", { class: "panel column" },
    make("header", {}, make("h3", { text: one.name }), make("p", { class: "hint", text: one.type })),
    one.tags.length ? make("ul", { class: "tags", "aria-label": "Tags" }, ...one.tags.map((tag) => make("li", { text: tag }))) : null,
    make("p", { class: one.missing > 0.2 ? "known bad" : "known", text: known.filter(Boolean).join(" · ") }),
    ...shape(one));
}

function shape({ name, histogram: values, lengths, top }) {
  const parts = [];
  if (top?.length) parts.push(bars(top));
  if (values) parts.push(histogram(values, { label: `Values of ${name}`, format: plainFigure }), make("p", { class: "hint", text: `mean ${plainFigure(values.mean)}, median ${plainFigure(values.median)}` }));
  if (lengths && lengths.high > 1) parts.push(histogram(lengths, { label: `Lengths of ${name}`, color: "var(--series-2)", height: 40 }), make("p", { class: "hint", text: `lists of ${figure(lengths.mean)} on average` }));
  return parts;
}

const plainFigure = (x) => (Math.abs(x) < 10_000 ? String(Number(x.toPrecision(4))) : figure(x)); // a year has no comma

function bars(top) {
  const most = top[0][1];
  return make("ol", { class: "bars" }, ...top.map(([value, share]) =>
    make("li", { style: { "--share": `${(100 * share) / most}%` } }, make("span", { text: value, title: value }), make("b", { text: percent(share, 0) }))));
}

// ---- the workflow

function workflow({ steps, edges, tried, passes }, seconds) {
  const total = Object.values(seconds).reduce((sum, x) => sum + x, 0);
  const hint = tried
    ? `${passes === 1 ? "one pass" : `${passes} passes`} over the data to fit; times are of ${number(tried)} rows${total ? `, ${duration(total)} in all` : ""}`
    : "the steps from raw columns to features";
  const nodes = steps.map((step) => ({
    id: step.id, title: step.operator.replace(" (fitted)", " ●"), lines: [step.columns.join(", "), cost(step, seconds[step.id])],
    full: `${step.operator}: ${step.columns.join(", ")}`,
  }));
  return panel("Workflow", `${hint}. ● learns from the data.`, graph(nodes, edges, { label: "The steps of the workflow" }));
}

function cost(step, seconds) {
  if (step.rows === null) return "";
  return [`${compact(step.rows)} rows`, seconds === undefined ? null : duration(seconds)].filter(Boolean).join(" · ");
}

function checked(same) {
  if (!same) return [];
  const wrong = Object.entries(same.columns).filter(([, n]) => n);
  const columns = Object.keys(same.columns).length;
  const text = wrong.length
    ? `${wrong.map(([name, n]) => `${name} differs in ${number(n)}`).join(", ")} of ${number(same.rows)} rows.`
    : `${number(same.rows)} rows went the way of a request and the way of the training: all ${columns} columns are the same, bit for bit.`;
  return [panel("Training and serving", "", make("p", { class: wrong.length ? "prose bad" : "prose good", text }))];
}
