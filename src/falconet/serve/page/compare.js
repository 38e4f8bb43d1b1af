// Two bundles side by side: the same person asks both; what both name is marked, and where it stands in the other.

import { call } from "./call.js";
import { byId, make, nothing } from "./dom.js";
import { genres, paint, title } from "./items.js";
import { refreshAnew } from "./list.js";
import { state } from "./state.js";
import { wished } from "./wishes.js";

/** Ask both bundles and draw their lists; the answer of the one that is served. */
export async function refreshComparison(turn) {
  if (!state.beside) return showAlone(await call("/v1/recommend", wished()));
  const { answers } = await call("/v1/compare", wished());
  if (turn === state.asked) show(answers);
  return answers[0];
}

function showAlone(answer) {
  byId("pair").replaceChildren(nothing("One bundle is served here. With another one beside it, their lists stand next to each other.",
    "falconet serve work/bundle --beside other/bundle"));
  byId("agreement").textContent = "";
  return answer;
}

function show(answers) {
  const places = answers.map((answer) => new Map(answer.items.map((item) => [String(item.item_id), item.rank])));
  byId("agreement").textContent = agreement(places);
  byId("pair").replaceChildren(...answers.map((answer, i) => column(answer, places[1 - i], i)));
}

function agreement([first, second]) {
  const both = [...first.keys()].filter((id) => second.has(id));
  const most = Math.max(first.size, second.size);
  if (!most) return "Neither has anything to recommend.";
  const same = both.filter((id) => first.get(id) === second.get(id)).length;
  return `${both.length} of ${most} are in both lists, ${same} of them at the same place.`;
}

function column(answer, other, i) {
  const name = i === 0 ? "This bundle" : "The one beside it";
  const cold = answer.cold_start ? " · new to it" : "";
  const list = answer.items.length
    ? make("ol", {}, ...answer.items.map((item) => row(item, other.get(String(item.item_id)))))
    : make("p", { class: "empty", text: "Nothing is left." });
  return make("section", { "aria-label": name },
    make("header", {}, make("h3", { text: name }), make("p", { class: "hint", text: `${answer.bundle}${cold}` })), list);
}

function row(item, elsewhere) {
  const { name, year } = title(item);
  const swatch = make("i", { class: "swatch cover" });
  paint(swatch, item);
  const more = [year, genres(item).slice(0, 2).join(", ")].filter(Boolean).join(" · ");
  const element = make("li", { "data-id": item.item_id, tabindex: 0, class: elsewhere === undefined ? "alone" : "shared" },
    make("b", { class: "place", text: item.rank }), swatch,
    make("span", { class: "what" }, make("strong", { text: name }), make("small", { text: more })),
    move(item.rank, elsewhere));
  for (const [event, on] of [["focus", true], ["blur", false], ["mouseenter", true], ["mouseleave", false]]) {
    element.addEventListener(event, () => twin(item.item_id, on));
  }
  return element;
}

/** Where the other list has it: further down there is up here. */
function move(rank, elsewhere) {
  if (elsewhere === undefined) return make("span", { class: "move only", text: "only here" });
  const moved = elsewhere - rank;
  if (!moved) return make("span", { class: "move same", text: "=", title: "the same place in both" });
  const text = `${moved > 0 ? "▲" : "▼"} ${Math.abs(moved)}`;
  return make("span", { class: `move ${moved > 0 ? "up" : "down"}`, text, title: `place ${elsewhere} in the other list` });
}

function twin(id, on) {
  for (const element of byId("pair").querySelectorAll(`[data-id="${CSS.escape(String(id))}"]`)) element.classList.toggle("lit", on);
}

function toggle() {
  state.sideBySide = !state.sideBySide;
  byId("side-by-side").setAttribute("aria-pressed", String(state.sideBySide));
  byId("comparison").hidden = !state.sideBySide;
  byId("results").hidden = state.sideBySide;
  byId("empty").hidden = true;
  byId("results").replaceChildren();
  refreshAnew();
}

export function startComparison() {
  byId("side-by-side").addEventListener("click", toggle);
}
