"use strict";

// Nothing comes from another server, nothing is stored but the theme and the visitor's session.

const byId = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const HUES = {
  Action: 6, Adventure: 152, Animation: 184, Children: 196, Comedy: 22, Crime: 258, Documentary: 166, Drama: 222, Fantasy: 282,
  "Film-Noir": 236, Horror: 352, IMAX: 204, Musical: 316, Mystery: 268, Romance: 338, "Sci-Fi": 208, Thriller: 176, War: 104, Western: 30,
};
const STAGES = [["history", "history"], ["features", "features"], ["retrieve", "retrieve"], ["rank", "rank"], ["explain", "explain"]];
const FUNNEL = [["catalogue", "in the catalogue"], ["allowed", "not met, not hidden"], ["retrieved", "retrieved"], ["answered", "shown"]];
const state = { mode: "visitor", session: newSession(), user: null, shown: new Map(), asked: 0, picked: new Set(), verb: "chose", ranker: null, filter: "", items: 0 };

// ---- talking to the server

// Whole numbers that JavaScript would round stay strings; the server reads both.
const exact = (key, value, context) =>
  typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) && context ? context.source : value;

async function call(path, body) {
  const options = body === undefined ? {} : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer.");
  }
  const content = JSON.parse(await response.text(), exact);
  if (!response.ok) throw new Error(content.error.message);
  return content;
}

function person() {
  return state.mode === "visitor" ? { session_id: state.session } : { user_id: state.user };
}

function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function newSession() {
  return `visitor-${randomId()}`;
}

// ---- what happens

async function refresh() {
  const turn = ++state.asked;
  if (state.mode === "user" && state.user === null) return showNobody();
  byId("results").setAttribute("aria-busy", "true");
  try {
    const answer = await call("/v1/recommend", wished());
    if (turn === state.asked) show(answer); // a later request has overtaken this one otherwise
    hideAlert();
  } catch (error) {
    showAlert(error.message);
  }
  if (turn === state.asked) byId("results").setAttribute("aria-busy", "false");
}

async function act(item, type) {
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

async function pick(item, tile) {
  if (state.picked.has(String(item.item_id))) return;
  state.picked.add(String(item.item_id));
  if (tile) mark(tile);
  if (!(await act(item, "like"))) {
    state.picked.delete(String(item.item_id));
    if (tile) mark(tile, false);
  }
  const n = state.picked.size;
  byId("picked").textContent = n === 0 ? "Three picks are enough to know you better." : n < 3 ? `${n} of 3 picked. Go on.` : `${n} picked. Every further one sharpens the list.`;
}

function mark(tile, on = true) {
  tile.setAttribute("aria-pressed", String(on));
  tile.disabled = on;
}

function choose(user) {
  state.user = user;
  for (const button of byId("samples").children) button.setAttribute("aria-pressed", String(button.dataset.id === String(user)));
  state.shown = new Map();
  refresh();
}

function become(mode) {
  state.mode = mode;
  byId("as-visitor").setAttribute("aria-pressed", String(mode === "visitor"));
  byId("as-user").setAttribute("aria-pressed", String(mode === "user"));
  byId("visitor").hidden = mode !== "visitor";
  byId("known").hidden = mode !== "user";
  state.shown = new Map();
  refresh();
}

// ---- drawing

function title(item) {
  const found = /^(.*?)\s*\((\d{4})\)\s*$/.exec(item.title);
  let name = found ? found[1] : item.title;
  const turned = /^(.*), (The|A|An|Der|Die|Das|La|Le|Les|El|Il|L')$/.exec(name);
  if (turned) name = `${turned[2]} ${turned[1]}`;
  return { name, year: item.attributes.year ?? (found ? found[2] : "") };
}

function genres(item) {
  const value = item.attributes.genres ?? Object.values(item.attributes).find(Array.isArray) ?? [];
  const list = Array.isArray(value) ? value : String(value).split("|");
  return list.filter((genre) => genre && genre !== "(no genres listed)").map(String);
}

function hash(text) {
  let h = 2166136261;
  for (const c of String(text)) h = Math.imul(h ^ c.codePointAt(0), 16777619) >>> 0;
  h = Math.imul(h ^ (h >>> 15), 2246822519) >>> 0;
  return (h ^ (h >>> 13)) >>> 0;
}

// A cover of its own for every item: hues from the genres, shape and place from the id.
function paint(element, item) {
  const h = hash(item.item_id);
  const [first, second] = genres(item);
  const hue = (genre) => HUES[genre] ?? hash(genre) % 360;
  const h1 = first === undefined ? h % 360 : hue(first);
  const h2 = second === undefined ? h1 + 28 : hue(second);
  const style = element.style;
  style.setProperty("--h1", String(h1 + (h % 17) - 8));
  style.setProperty("--h2", String(h2 + ((h >>> 5) % 17) - 8));
  style.setProperty("--angle", `${(h >>> 9) % 360}deg`);
  style.setProperty("--x", `${20 + ((h >>> 3) % 62)}%`);
  style.setProperty("--y", `${14 + ((h >>> 7) % 36)}%`);
  style.setProperty("--r", `${16 + ((h >>> 11) % 20)}%`);
  element.dataset.shape = String((h >>> 2) % 4);
}

function show(answer) {
  const before = places();
  const shown = new Map(answer.items.map((item) => [String(item.item_id), item]));
  const fresh = state.shown.size > 0;
  const old = state.shown;
  state.shown = shown;
  const keep = document.activeElement?.closest?.(".card")?.dataset.id;
  byId("results").replaceChildren(...answer.items.map((item) => card(item, fresh && !old.has(String(item.item_id)))));
  byId("empty").hidden = answer.items.length > 0;
  byId("empty").textContent = state.filter ? "Nothing is left that the filter holds for." : "Nothing is left to recommend: everything was met or hidden.";
  glide(before);
  if (keep) (byId("results").querySelector(`[data-id="${CSS.escape(keep)}"]`) ?? byId("results").firstElementChild)?.focus({ preventScroll: true });
  headline(answer);
  gauges(answer);
  past(answer.history);
}

function showNobody() {
  state.shown = new Map();
  byId("results").replaceChildren();
  byId("results").setAttribute("aria-busy", "false");
  byId("empty").hidden = false;
  byId("empty").textContent = "Pick somebody on the left, or search an id.";
  byId("headline").textContent = "Recommended";
  byId("subline").textContent = "";
  byId("gauges").hidden = true;
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
  part(".first").textContent = item.retriever_score.toFixed(2);
  const ranked = state.ranker && item.source !== "popular";
  part(".final").textContent = ranked ? item.score.toFixed(3) : "–";
  const moved = item.retriever_rank - item.rank;
  part(".places").textContent = ranked ? `${item.retriever_rank} → ${item.rank}` : item.rank;
  part(".stage-1").textContent = item.source === "popular" ? "Popularity" : "Retriever";
  part(".places").className = moved > 0 ? "places up" : moved < 0 ? "places down" : "places";
  part(".why").addEventListener("click", () => why(item));
  part(".why").setAttribute("aria-label", `Why ${name}?`);
  for (const button of element.querySelectorAll(".acts button")) {
    button.addEventListener("click", () => busy(element, () => act(item, button.dataset.type)));
    if (button.dataset.type === "view") button.textContent = state.verb.charAt(0).toUpperCase() + state.verb.slice(1);
    button.setAttribute("aria-label", `${button.textContent}: ${name}`);
  }
  element.addEventListener("keydown", (event) => {
    if (event.target !== element || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.toLowerCase();
    const type = { v: "view", l: "like", h: "hide" }[key];
    if (type) busy(element, () => act(item, type));
    if (key === "y") why(item);
  });
  return element;
}

function reason(element, text) {
  const words = /^(Because you (?:looked at|\S+)) (.+)$/.exec(text);
  if (!words) return void (element.textContent = text);
  const strong = document.createElement("em");
  strong.textContent = title({ title: words[2], attributes: {} }).name;
  element.replaceChildren(`${words[1]} `, strong);
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

function gauges(answer) {
  byId("gauges").hidden = false;
  const most = Math.max(answer.funnel.catalogue, 2);
  const height = (n) => `${(4 + 46 * (Math.log1p(n) / Math.log1p(most))).toFixed(1)}%`;
  byId("funnel").replaceChildren(
    ...FUNNEL.map(([key, label], i) => {
      const item = document.createElement("li");
      const shape = Object.assign(document.createElement("div"), { className: "shape" });
      const after = FUNNEL[i + 1]?.[0] ?? key;
      shape.style.setProperty("--a", height(answer.funnel[key]));
      shape.style.setProperty("--b", height(answer.funnel[after]));
      item.append(shape, Object.assign(document.createElement("b"), { textContent: number.format(answer.funnel[key]) }));
      item.append(Object.assign(document.createElement("small"), { textContent: label }));
      return item;
    }),
  );
  byId("total").textContent = `${answer.took_ms.total.toFixed(1)} ms`;
  const stages = STAGES.map(([key, label], i) => ({ ms: answer.took_ms[key], label, color: `var(--stage-${i + 1})` })).filter(({ ms }) => ms !== undefined);
  byId("bar").replaceChildren(
    ...stages.map(({ ms, color }) => {
      const piece = document.createElement("i");
      piece.style.flexGrow = String(1 + ms * 1000); // a sum below 1 would leave a part of the bar empty
      piece.style.background = color;
      return piece;
    }),
  );
  byId("legend").replaceChildren(
    ...stages.map(({ ms, label, color }) => {
      const item = Object.assign(document.createElement("li"), { textContent: `${label} ${ms.toFixed(2)}` });
      item.style.setProperty("--c", color);
      return item;
    }),
  );
}

function past(history) {
  byId("past").hidden = history.length === 0;
  const words = { training: "", view: state.verb, like: "liked", rating: "rated", click: "clicked" };
  byId("past-list").replaceChildren(
    ...[...history].reverse().map((met) => {
      const item = document.createElement("li");
      const name = Object.assign(document.createElement("span"), { textContent: title({ ...met, attributes: {} }).name, title: met.title });
      const kind = Object.assign(document.createElement("small"), { textContent: words[met.type] ?? met.type });
      if (met.type !== "training") kind.className = "fresh";
      item.append(name, kind);
      return item;
    }),
  );
}

function tile(item) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "tile" });
  const { name, year } = title(item);
  button.dataset.id = String(item.item_id);
  button.append(Object.assign(document.createElement("b"), { textContent: name }));
  button.append(Object.assign(document.createElement("small"), { textContent: year }));
  button.setAttribute("aria-pressed", "false");
  button.title = genres(item).join(", ");
  paint(button, item);
  button.addEventListener("click", () => pick(item, button));
  return button;
}

// ---- messages

function showAlert(text) {
  byId("alert-text").textContent = text;
  byId("alert").hidden = false;
}

function hideAlert() {
  byId("alert").hidden = true;
}

let toastTimer;
function toast(text) {
  byId("toast").textContent = text;
  byId("toast").classList.add("shown");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => byId("toast").classList.remove("shown"), 2600);
}

// ---- searching

function searching(input, list, find, draw) {
  let timer;
  let turn = 0;
  const search = async () => {
    const mine = ++turn;
    const text = input.value.trim();
    if (!text) return list.replaceChildren();
    try {
      const found = await find(text);
      if (mine !== turn) return;
      list.replaceChildren(...found.map((one) => row(draw(one))));
      if (!found.length) list.replaceChildren(Object.assign(document.createElement("li"), { className: "none", textContent: "Nothing found." }));
    } catch (error) {
      showAlert(error.message);
    }
  };
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, 160);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") list.querySelector("button")?.focus();
    if (event.key === "Enter") list.querySelector("button")?.click();
  });
  list.addEventListener("keydown", (event) => {
    const here = document.activeElement.closest("li");
    const next = event.key === "ArrowDown" ? here?.nextElementSibling : event.key === "ArrowUp" ? here?.previousElementSibling : null;
    if (next) { next.querySelector("button").focus(); event.preventDefault(); }
  });
  return () => { input.value = ""; list.replaceChildren(); };
}

function row(button) {
  const item = document.createElement("li");
  item.append(button);
  return item;
}

const option = (text, work) => {
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: text });
  button.addEventListener("click", work);
  return button;
};

const clearItems = searching(
  byId("find-item"), byId("found-items"),
  (text) => call(`/v1/items?k=8&search=${encodeURIComponent(text)}`),
  (item) => option(item.title, () => { clearItems(); pick(item, byId("start").querySelector(`[data-id="${CSS.escape(String(item.item_id))}"]`)); }),
);
const clearUsers = searching(
  byId("find-user"), byId("found-users"),
  async (text) => (await call(`/v1/users?k=8&search=${encodeURIComponent(text)}`)).users,
  (user) => option(`user ${user}`, () => { clearUsers(); choose(user); }),
);

// ---- beginning

function remembered(key, value) {
  try {
    if (value !== undefined) localStorage.setItem(key, value);
    return localStorage.getItem(key);
  } catch {
    return null; // storage is switched off
  }
}

function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
}

async function load() {
  try {
    const [version, start, users] = await Promise.all([call("/version"), call("/v1/start"), call("/v1/users")]);
    state.verb = version.verb;
    state.items = version.items;
    byId("verb").textContent = version.verb;
    state.ranker = version.models.ranker;
    const models = [...Object.values(version.models.retrievers), version.models.ranker].filter(Boolean).join(" + ");
    byId("facts").textContent = `${models} · ${number.format(version.items)} items · ${number.format(version.users)} users · bundle ${version.bundle}`;
    byId("start").replaceChildren(...start.map(tile));
    byId("samples").replaceChildren(
      ...users.samples.map((sample) => {
        const button = option("", () => choose(sample.user_id));
        button.append(Object.assign(document.createElement("b"), { textContent: sample.user_id }));
        button.append(Object.assign(document.createElement("small"), { textContent: `${sample.kind} · ${number.format(sample.items)} items` }));
        button.dataset.id = String(sample.user_id);
        button.setAttribute("aria-pressed", "false");
        return button;
      }),
    );
    hideAlert();
  } catch (error) {
    showAlert(error.message);
    byId("results").setAttribute("aria-busy", "false");
    return;
  }
  await refresh();
}

byId("as-visitor").addEventListener("click", () => become("visitor"));
byId("as-user").addEventListener("click", () => become("user"));
byId("k").addEventListener("change", () => { state.shown = new Map(); refresh(); });
byId("retry").addEventListener("click", () => (byId("start").children.length ? refresh() : load()));
byId("again").addEventListener("click", () => {
  state.session = newSession();
  state.picked.clear();
  state.shown = new Map();
  for (const button of byId("start").children) mark(button, false);
  byId("picked").textContent = "Three picks are enough to know you better.";
  refresh();
});
byId("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const next = dark === "dark" ? "light" : "dark";
  theme(next);
  remembered("falconet-theme", next);
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || /^(INPUT|SELECT)$/.test(document.activeElement.tagName) || byId("why").open) return;
  event.preventDefault();
  byId(state.mode === "visitor" ? "find-item" : "find-user").focus();
});
theme(remembered("falconet-theme"));
document.addEventListener("DOMContentLoaded", load); // once tools.js is there too
