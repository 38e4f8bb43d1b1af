// Charts as inline SVG, drawn anew where their place becomes wider or narrower, so that letters keep their size.

import { compact, draw, figure, make } from "./dom.js";

const FRAME = { left: 46, right: 14, top: 10, bottom: 30 };

/** A figure that calls `paint(width)` for an <svg> whenever its own width changes. `label` is what it shows, in words. */
function fitted(label, paint) {
  const figure = make("figure", { class: "chart" });
  let drawn = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width);
    if (width < 40 || width === drawn) return;
    drawn = width;
    const svg = paint(width);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", label);
    figure.replaceChildren(svg);
  }).observe(figure);
  return figure;
}

function svg(width, height, ...children) {
  return draw("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, ...children);
}

// ---- scales

/** From values to pixels, with `ticks` at round values. */
function scale(values, from, to, { log = false, zero = false, most = 5, whole = false } = {}) {
  const shown = values.filter((x) => Number.isFinite(x) && (!log || x > 0));
  let low = Math.min(...shown), high = Math.max(...shown);
  if (!shown.length) [low, high] = [0, 1];
  if (zero) [low, high] = [Math.min(0, low), Math.max(0, high)];
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const ticks = log ? powers(low, high) : rounds(low, high, most, whole);
  if (!log && !whole) [low, high] = [Math.min(low, ticks[0]), Math.max(high, ticks.at(-1))];
  const f = log ? Math.log10 : (x) => x;
  const place = (x) => from + ((f(x) - f(low)) / (f(high) - f(low))) * (to - from);
  return { place, ticks };
}

function rounds(low, high, most, whole) {
  const rough = (high - low) / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const first = (whole ? Math.ceil : Math.floor)(low / step), last = (whole ? Math.floor : Math.ceil)(high / step);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step).map((x) => Number(x.toPrecision(12)));
}

function powers(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  return Array.from({ length: Math.max(last - first + 1, 0) }, (_, i) => 10 ** (first + i));
}

function axes(x, y, width, height, { xLabel, yFormat }) {
  const bottom = height - FRAME.bottom;
  const lines = y.ticks.map((value) => draw("line", { class: "grid", x1: FRAME.left, x2: width - FRAME.right, y1: y.place(value), y2: y.place(value) }));
  const left = y.ticks.map((value) => draw("text", { x: FRAME.left - 8, y: y.place(value) + 4, "text-anchor": "end", text: yFormat(value) }));
  const below = x.ticks.map((value) => draw("text", { x: x.place(value), y: bottom + 17, "text-anchor": "middle", text: compact(value) }));
  const name = xLabel ? draw("text", { class: "axis", x: width - FRAME.right, y: height - 1, "text-anchor": "end", text: xLabel }) : null;
  return [...lines, ...left, ...below, ...(name ? [name] : [])];
}

// ---- charts

/**
 * Lines. `series`: {name, color, points: [[x, y]], dashed}; `mark`: an x of the first one that stands out.
 * Options: label, xLabel, logX, logY, zero, yFormat, height, dots.
 */
export function lines(series, { label, xLabel = "", logX = false, logY = false, zero = false, whole = false, yFormat = compact, height = 210, dots = true, extra = [] }) {
  return fitted(label, (width) => {
    const [xs, ys] = [0, 1].map((axis) => [...series, ...extra].flatMap((one) => one.points.map((point) => point[axis])));
    const most = Math.max(3, Math.floor(width / 80));
    const x = scale(xs, FRAME.left, width - FRAME.right, { log: logX, most, whole });
    const y = scale(ys, height - FRAME.bottom, FRAME.top, { log: logY, zero, most: 4 });
    const marks = series.flatMap((one) => line(one, x, y, dots));
    const beside = extra.map((one) => draw("path", { class: "guide", d: path(one.points, x, y) }));
    return svg(width, height, ...axes(x, y, width, height, { xLabel, yFormat }), ...beside, ...marks);
  });
}

function path(points, x, y) {
  return points.map(([a, b], i) => `${i ? "L" : "M"}${x.place(a).toFixed(1)} ${y.place(b).toFixed(1)}`).join("");
}

function line({ name, color, points, best }, x, y, dots) {
  const known = points.filter(([, b]) => Number.isFinite(b));
  const stroke = draw("path", { class: "line", d: path(known, x, y), style: { stroke: color } });
  const circles = known.map(([a, b]) =>
    draw("circle", { class: a === best ? "best" : "dot", cx: x.place(a), cy: y.place(b), r: a === best ? 5.5 : dots ? 3 : 6, style: { fill: dots || a === best ? color : "transparent" } },
      draw("title", { text: `${name}: ${figure(b)} at ${figure(a)}${a === best ? ", the best" : ""}` })));
  return [stroke, ...circles];
}

/** A small histogram: {low, high, counts}; `whole`: a bar for each number from low to high. */
export function histogram(of, { label, height = 54, color = "var(--series-1)", format = figure }) {
  const chart = fitted(label, (width) => {
    const most = Math.max(...of.counts), step = width / of.counts.length;
    const bars = of.counts.map((n, i) => {
      const tall = n ? Math.max(1.5, (n / most) * (height - 2)) : 0;
      return draw("rect", { x: (i * step + 0.5).toFixed(2), y: height - tall, width: Math.max(step - 1, 0.5).toFixed(2), height: tall, rx: Math.min(2, step / 4), style: { fill: color } },
        draw("title", { text: of.whole ? `${figure(n)} from ${format(of.low + i)} on` : `${figure(n)} between ${format(edge(of, i))} and ${format(edge(of, i + 1))}` }));
    });
    return svg(width, height, ...bars, draw("line", { class: "grid", x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5 }));
  });
  return make("div", { class: "histogram" }, chart, make("p", { class: "ends" }, make("span", { text: format(of.low) }), make("span", { text: format(of.high) })));
}

function edge({ low, high, counts, log }, i) {
  const share = i / counts.length;
  return log ? low * (high / low) ** share : low + (high - low) * share;
}

/** Values with their intervals, one below the other: {name, value, low, high, strong}. */
export function whiskers(rows, { label, format = figure }) {
  const line = 30, foot = 24, height = rows.length * line + foot;
  return fitted(label, (width) => {
    const left = Math.min(130, Math.max(...rows.map(({ name }) => name.length)) * 7 + 14), right = 64;
    const x = scale(rows.flatMap(({ value, low, high }) => [value, low ?? value, high ?? value]), left, width - right, { zero: true, most: Math.max(2, Math.floor(width / 110)) });
    const grid = x.ticks.flatMap((tick) => [
      draw("line", { class: "grid", x1: x.place(tick), x2: x.place(tick), y1: 0, y2: height - foot }),
      draw("text", { x: x.place(tick), y: height - 6, "text-anchor": "middle", text: compact(tick) }),
    ]);
    const marks = rows.flatMap(({ name, value, low, high, strong }, i) => {
      const y = i * line + line / 2;
      return [
        draw("text", { class: strong ? "name strong" : "name", x: left - 12, y: y + 4, "text-anchor": "end", text: name.length > 17 ? `${name.slice(0, 16)}…` : name }, draw("title", { text: name })),
        draw("line", { class: "whisker", x1: x.place(low ?? value), x2: x.place(high ?? value), y1: y, y2: y }),
        draw("circle", { class: strong ? "best" : "dot", cx: x.place(value), cy: y, r: 5, style: { fill: strong ? "var(--accent)" : "var(--series-1)" } },
          draw("title", { text: `${name}: ${format(value)}, ${format(low)} to ${format(high)}` })),
        draw("text", { class: strong ? "value strong" : "value", x: width, y: y + 4, "text-anchor": "end", text: format(value) }),
      ];
    });
    return svg(width, height, ...grid, ...marks);
  });
}

/** Requests second by second, as columns: the lower part went well. `seconds`: [[all, refused, broken]]. */
export function traffic(seconds, { label, height = 130 }) {
  const most = Math.max(...seconds.map(([all]) => all), 1);
  return fitted(label, (width) => {
    const y = scale([0, most], height - 22, 8, { zero: true, most: 3, whole: false });
    const step = (width - FRAME.left) / seconds.length;
    const columns = seconds.flatMap(([all, refused, broken], i) => {
      const x = FRAME.left + i * step;
      const part = (from, to, color) => from === to ? [] : [draw("rect", { x: x.toFixed(2), width: Math.max(step - 1, 0.6).toFixed(2), y: y.place(to), height: y.place(from) - y.place(to), style: { fill: color } })];
      return [...part(0, all - refused - broken, "var(--series-1)"), ...part(all - refused - broken, all - broken, "var(--stage-3)"), ...part(all - broken, all, "var(--bad)")];
    });
    const ticks = y.ticks.flatMap((tick) => [
      draw("line", { class: "grid", x1: FRAME.left, x2: width, y1: y.place(tick), y2: y.place(tick) }),
      draw("text", { x: FRAME.left - 8, y: y.place(tick) + 4, "text-anchor": "end", text: compact(tick) }),
    ]);
    const ends = [draw("text", { x: FRAME.left, y: height - 4, text: `${seconds.length / 60} minutes ago` }), draw("text", { x: width, y: height - 4, "text-anchor": "end", text: "now" })];
    return svg(width, height, ...ticks, ...columns, ...ends);
  });
}

// ---- graphs

const BOX = { width: 150, height: 58, across: 46, down: 14 };

/** Boxes in columns by their distance from the first, and what goes from one to another. `nodes`: {id, title, lines}. */
export function graph(nodes, edges, { label }) {
  const columns = layers(nodes, edges);
  const tallest = Math.max(...columns.map((column) => column.length));
  const width = columns.length * (BOX.width + BOX.across) - BOX.across + 2, height = tallest * (BOX.height + BOX.down) - BOX.down + 2;
  const places = new Map();
  columns.forEach((column, i) => column.forEach((node, j) => {
    const top = (height - column.length * (BOX.height + BOX.down) + BOX.down) / 2;
    places.set(node.id, { x: 1 + i * (BOX.width + BOX.across), y: top + j * (BOX.height + BOX.down) });
  }));
  const drawn = svg(width, height, ...edges.map((edge) => curve(places.get(edge.from), places.get(edge.to), edge.fit_only)), ...nodes.map((node) => box(node, places.get(node.id))));
  drawn.setAttribute("role", "img");
  drawn.setAttribute("aria-label", label);
  return make("div", { class: "chart graph", tabindex: 0, role: "group", "aria-label": label }, drawn);
}

function layers(nodes, edges) {
  const depth = new Map();
  const deep = (id) => {
    if (!depth.has(id)) {
      depth.set(id, 0); // of a circle, which there is not
      depth.set(id, 1 + Math.max(-1, ...edges.filter((edge) => edge.to === id).map((edge) => deep(edge.from))));
    }
    return depth.get(id);
  };
  const columns = [];
  for (const node of nodes) (columns[deep(node.id)] ??= []).push(node);
  return columns;
}

function curve(from, to, dashed) {
  const [x1, y1, x2, y2] = [from.x + BOX.width, from.y + BOX.height / 2, to.x, to.y + BOX.height / 2];
  const bend = Math.max((x2 - x1) / 2, 20);
  return draw("path", { class: dashed ? "edge dashed" : "edge", d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` });
}

function box({ title, lines: [columns, cost], full }, { x, y }) {
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  return draw("g", { transform: `translate(${x} ${y})` },
    draw("title", { text: full }),
    draw("rect", { class: "box", width: BOX.width, height: BOX.height, rx: 9 }),
    draw("text", { class: "strong", x: 11, y: 19, text: cut(title, 20) }),
    draw("text", { x: 11, y: 35, text: cut(columns, 22) }),
    draw("text", { class: "cost", x: 11, y: 50, text: cost ?? "" }));
}
