// Who asks: a new visitor who picks what they like, or somebody the models know.

import { call } from "./call.js";
import { byId, make, number, showAlert } from "./dom.js";
import { genres, paint, title } from "./items.js";
import { act, refreshAnew } from "./list.js";
import { newSession, state } from "./state.js";

const SEARCH_WAIT = 160; // milliseconds after the last letter

// ---- a new visitor

export function showStart(items) {
  byId("start").replaceChildren(...items.map(tile));
}

function tile(item) {
  const { name, year } = title(item);
  const button = make("button", {
    type: "button", class: "tile", "data-id": item.item_id, "aria-pressed": "false", title: genres(item).join(", "),
    on: { click: () => pick(item, button) },
  }, make("b", { text: name }), make("small", { text: year }));
  paint(button, item);
  return button;
}

async function pick(item, button) {
  if (state.picked.has(String(item.item_id))) return;
  state.picked.add(String(item.item_id));
  if (button) mark(button);
  if (!(await act(item, "like"))) {
    state.picked.delete(String(item.item_id));
    if (button) mark(button, false);
  }
  sayPicked();
}

function mark(button, on = true) {
  button.setAttribute("aria-pressed", String(on));
  button.disabled = on;
}

function sayPicked() {
  const n = state.picked.size;
  byId("picked").textContent = n === 0 ? "Three picks are enough to know you better." : n < 3 ? `${n} of 3 picked. Go on.` : `${n} picked. Every further one sharpens the list.`;
}

function startOver() {
  state.session = newSession();
  state.picked.clear();
  for (const button of byId("start").children) mark(button, false);
  sayPicked();
  refreshAnew();
}

// ---- somebody known

export function showSamples(samples) {
  byId("samples").replaceChildren(...samples.map((sample) =>
    make("button", { type: "button", "data-id": sample.user_id, "aria-pressed": "false", on: { click: () => choose(sample.user_id) } },
      make("b", { text: sample.user_id }), make("small", { text: `${sample.kind} · ${number(sample.items)} items` }))));
}

function choose(user) {
  state.user = user;
  for (const button of byId("samples").children) button.setAttribute("aria-pressed", String(button.dataset.id === String(user)));
  refreshAnew();
}

function become(mode) {
  state.mode = mode;
  byId("as-visitor").setAttribute("aria-pressed", String(mode === "visitor"));
  byId("as-user").setAttribute("aria-pressed", String(mode === "user"));
  byId("visitor").hidden = mode !== "visitor";
  byId("known").hidden = mode !== "user";
  refreshAnew();
}

// ---- searching

/** Search while somebody types; the function it gives empties the field and the list. */
function searching(input, list, find, option) {
  let timer;
  let turn = 0;
  const search = async () => {
    const mine = ++turn;
    const text = input.value.trim();
    if (!text) return list.replaceChildren();
    try {
      const found = await find(text);
      if (mine !== turn) return;
      list.replaceChildren(...found.map((one) => make("li", {}, option(one))));
      if (!found.length) list.replaceChildren(make("li", { class: "none", text: "Nothing found." }));
    } catch (error) {
      showAlert(error.message);
    }
  };
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, SEARCH_WAIT);
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

const choice = (text, work) => make("button", { type: "button", text, on: { click: work } });

export function startPeople() {
  const clearItems = searching(
    byId("find-item"), byId("found-items"),
    (text) => call(`/v1/items?k=8&search=${encodeURIComponent(text)}`),
    (item) => choice(item.title, () => { clearItems(); pick(item, byId("start").querySelector(`[data-id="${CSS.escape(String(item.item_id))}"]`)); }),
  );
  const clearUsers = searching(
    byId("find-user"), byId("found-users"),
    async (text) => (await call(`/v1/users?k=8&search=${encodeURIComponent(text)}`)).users,
    (user) => choice(`user ${user}`, () => { clearUsers(); choose(user); }),
  );
  byId("as-visitor").addEventListener("click", () => become("visitor"));
  byId("as-user").addEventListener("click", () => become("user"));
  byId("again").addEventListener("click", startOver);
}
