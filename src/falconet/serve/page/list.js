// The list of "Try it": asked for, drawn as cards, and how it came about.

import { call } from "./call.js";
import { refreshComparison } from "./compare.js";
import { byId, hideAlert, make, ms, number, showAlert, toast } from "./dom.js";
import { genres, paint, title } from "./items.js";
import { person, randomId, state } from "./state.js";
import { why } from "./why.js";
import { wished } from "./wishes.js";

const STAGES = ["history", "features", "retrieve", "rank", "explain"];
const FUNNEL = [["catalogue", "in the catalogue"], ["allowed", "not met, not hidden"], ["retrieved", "retrieved"], ["answered", "shown"]];

const WITHOUT = {
  retrieve: "The search took too long: this is what is popular.",
  rank: "The ranker took too long: this is the order of the retrievers.",
  store: "Events cannot be reached at the moment: this is what training knew.",
};

/** Ask again, for whoever is chosen, and draw what comes. */
export async function refresh() {
  const turn = ++state.asked;
  if (state.mode === "user" && state.user === null) return showNobody();
  byId("results").setAttribute("aria-busy", "true");
  try {
    const answer = state.sideBySide ? await refreshComparison(turn) : await call("/v1/recommend", wished());
    if (turn === state.asked) state.sideBySide ? explain(answer) : show(answer); // else a later request has overtaken it
    hideAlert();
  } catch (error) {
    showAlert(error.message);
  }
  if (turn === state.asked) byId("results").setAttribute("aria-busy", "false");
}

/** The same for a new person or another wish: what is there now is no longer news. */
export function refreshAnew() {
  state.shown = new Map();
  return refresh();
}

/** Tell the server what somebody did; whether it was taken in. */
export async function act(item, type) {
  const event = { event_id: randomId(), ...person(), item_id: item.item_id, type };
  try {
    const { outcomes } = await call("/v1/events", { events: [event] });
    if (outcomes[0] !== "accepted") throw new Error(`Not taken in: ${outcomes[0]}`);
  } catch (error) {
    showAlert(error.message);
    return false;
  }
  const said = { view: `Noted that you ${state.verb}`, like: "Liked", hide: "Never again:" }[type];
  toast(`${said} ${title(item).name}`);
  await refresh();
  return true;
}

// ---- cards

function show(answer) {
  const before = places();
  const shown = new Map(answer.items.map((item) => [String(item.item_id), item]));
  const fresh = state.shown.size > 0;
  const old = state.shown;
  state.shown = shown;
  const keep = document.activeElement?.closest?.(".card")?.dataset.id;
  byId("results").replaceChildren(...answer.items.map((item) => card(item, fresh && !old.has(String(item.item_id)))));
  showEmpty(answer.items.length === 0);
  glide(before);
  if (keep) (byId("results").querySelector(`[data-id="${CSS.escape(keep)}"]`) ?? byId("results").firstElementChild)?.focus({ preventScroll: true });
  explain(answer);
}

function showEmpty(empty) {
  byId("empty").hidden = !empty;
  byId("empty").textContent = state.filter ? "Nothing is left that the filter holds for." : "Nothing is left to recommend: everything was met or hidden.";
}

function explain(answer) {
  byId("gauges").hidden = false;
  state.retrieved = answer.funnel.retrieved;
  headline(answer);
  funnel(answer.funnel);
  times(answer.took_ms);
  past(answer.history);
  degraded(answer.degraded);
}

function showNobody() {
  state.shown = new Map();
  byId("results").replaceChildren();
  byId("results").setAttribute("aria-busy", "false");
  byId("empty").hidden = false;
  byId("empty").textContent = "Pick somebody, or search an id.";
  byId("headline").textContent = "Recommended";
  byId("subline").textContent = "";
  byId("gauges").hidden = true;
  byId("degraded").hidden = true;
  past([]);
}

function headline(answer) {
  const events = answer.history.filter((met) => met.type !== "training").length;
  const popular = answer.items[0]?.source === "popular";
  byId("headline").textContent = state.mode === "user" ? `For user ${state.user}` : popular ? "Popular with everyone" : "For you";
  byId("subline").textContent = popular
    ? "Nothing is known of this person yet, so this is what most people choose."
    : answer.cold_start
      ? `New to the models, which never saw this person; the list follows ${events === 1 ? "one pick" : `${events} picks`}.`
      : `From ${answer.history.length} items in the past${events ? `, ${events} of them since the models were trained` : ""}.`;
}

/** A stage that was late or away is left out: said in a line, as the list is a worse one. */
function degraded(stages) {
  byId("degraded").hidden = !stages.length;
  byId("degraded").textContent = stages.map((stage) => WITHOUT[stage] ?? `Without ${stage}, which took too long.`).join(" ");
}

function card(item, isNew) {
  const element = byId("card").content.firstElementChild.cloneNode(true);
  const part = (name) => element.querySelector(name);
  const { name, year } = title(item);
  element.dataset.id = String(item.item_id);
  element.setAttribute("aria-label", `${item.rank}. ${name}. ${item.reason}`);
  paint(part(".cover"), item);
  part(".rank").textContent = item.rank;
  part(".new").hidden = !isNew;
  part(".title").textContent = name;
  part(".year").textContent = year;
  part(".genres").textContent = genres(item).slice(0, 3).join(" · ");
  reason(part(".reason"), item.reason);
  scores(part, item);
  part(".why").addEventListener("click", () => why(item));
  part(".why").setAttribute("aria-label", `Why ${name}?`);
  for (const button of element.querySelectorAll(".acts button")) {
    button.addEventListener("click", () => busy(element, () => act(item, button.dataset.type)));
    if (button.dataset.type === "view") button.textContent = state.verb.charAt(0).toUpperCase() + state.verb.slice(1);
    button.setAttribute("aria-label", `${button.textContent}: ${name}`);
  }
  element.addEventListener("keydown", (event) => cardKey(event, element, item));
  return element;
}

function cardKey(event, element, item) {
  if (event.target !== element || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key.toLowerCase();
  const type = { v: "view", l: "like", h: "hide" }[key];
  if (type) busy(element, () => act(item, type));
  if (key === "y") why(item);
}

function scores(part, item) {
  const ranked = state.ranker && item.source !== "popular";
  const moved = item.retriever_rank - item.rank;
  part(".first").textContent = item.retriever_score.toFixed(2);
  part(".final").textContent = ranked ? item.score.toFixed(3) : "–";
  part(".places").textContent = ranked ? `${item.retriever_rank} → ${item.rank}` : item.rank;
  part(".stage-1").textContent = item.source === "popular" ? "Popularity" : "Retriever";
  part(".places").className = moved > 0 ? "places up" : moved < 0 ? "places down" : "places";
}

function reason(element, text) {
  const words = /^(Because you (?:looked at|\S+)) (.+)$/.exec(text);
  if (!words) return void (element.textContent = text);
  element.replaceChildren(`${words[1]} `, make("em", { text: title({ title: words[2] }).name }));
}

async function busy(element, work) {
  if (element.dataset.busy) return;
  element.dataset.busy = "yes";
  for (const button of element.querySelectorAll("button")) button.disabled = true;
  await work();
  delete element.dataset.busy;
  for (const button of element.querySelectorAll("button")) button.disabled = false;
}

// Cards that stay glide from their old place to the new one; others fade in.
function places() {
  return new Map([...byId("results").children].map((element) => [element.dataset.id, element.getBoundingClientRect()]));
}

function glide(before) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const element of byId("results").children) {
    const from = before.get(element.dataset.id);
    const to = element.getBoundingClientRect();
    if (from && (from.x !== to.x || from.y !== to.y)) {
      const shift = `translate(${from.x - to.x}px, ${from.y - to.y}px)`;
      element.animate([{ transform: shift }, { transform: "none" }], { duration: 420, easing: "cubic-bezier(.2,.8,.2,1)" });
    } else if (!from) {
      element.animate([{ opacity: 0, transform: "scale(.96)" }, { opacity: 1, transform: "none" }], { duration: 320, easing: "ease-out" });
    }
  }
}

// ---- how the list came about

function funnel(left) {
  const most = Math.max(left.catalogue, 2);
  const height = (n) => `${(4 + 46 * (Math.log1p(n) / Math.log1p(most))).toFixed(1)}%`;
  const stage = ([key, label], i) => {
    const after = FUNNEL[i + 1]?.[0] ?? key;
    const shape = make("div", { class: "shape", style: { "--a": height(left[key]), "--b": height(left[after]) } });
    return make("li", {}, shape, make("b", { text: number(left[key]) }), make("small", { text: label }));
  };
  byId("funnel").replaceChildren(...FUNNEL.map(stage));
}

function times(took) {
  byId("total").textContent = `${took.total.toFixed(1)} ms`;
  const stages = STAGES.map((key, i) => ({ key, time: took[key], color: `var(--stage-${i + 1})` })).filter(({ time }) => time !== undefined);
  // A sum of flex-grow below 1 would leave a part of the bar empty.
  byId("bar").replaceChildren(...stages.map(({ time, color }) => make("i", { style: { "flex-grow": 1 + time * 1000, background: color } })));
  byId("legend").replaceChildren(...stages.map(({ key, time, color }) => make("li", { text: `${key} ${ms(time)}`, style: { "--c": color } })));
}

function past(history) {
  byId("past").hidden = history.length === 0;
  const words = { training: "", view: state.verb, like: "liked", rating: "rated", click: "clicked" };
  const line = (met) =>
    make("li", {},
      make("span", { text: title(met).name, title: met.title }),
      make("small", { text: words[met.type] ?? met.type, class: met.type === "training" ? null : "fresh" }));
  byId("past-list").replaceChildren(...[...history].reverse().map(line));
}
