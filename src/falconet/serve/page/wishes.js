// What a person may ask for beside the list: how many, a filter with its count, a more varied list, another moment.

import { call } from "./call.js";
import { byId, number } from "./dom.js";
import { refreshAnew } from "./list.js";
import { person, state } from "./state.js";

const FILTER_WAIT = 220; // milliseconds after the last letter

/** The body of the request for the list, with what is wished for. */
export function wished() {
  const body = { ...person(), k: Number(byId("k").value) };
  if (state.filter) body.filter = state.filter;
  if (Object.keys(state.context).length) body.context = { ...state.context };
  const diversity = Number(byId("diversity").value);
  return diversity ? { ...body, diversity } : body;
}

function said(text, bad = false) {
  byId("count").textContent = text;
  byId("count").classList.toggle("bad", bad);
  byId("filter").setAttribute("aria-invalid", String(bad));
}

let turn = 0;
async function filter(text) {
  const mine = ++turn;
  if (!text) {
    said("");
    return filterBy("");
  }
  try {
    const { items } = await call("/v1/filter", { filter: text });
    if (mine !== turn) return;
    said(`${number(items)} of ${number(state.items)} items`);
    filterBy(text);
  } catch (error) {
    if (mine === turn) said(error.message, true); // the list stays as it is until the filter can be read
  }
}

function filterBy(text) {
  if (text === state.filter) return;
  state.filter = text;
  refreshAnew();
}

export function startWishes() {
  let timer;
  byId("filter").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => filter(byId("filter").value.trim()), FILTER_WAIT);
  });
  byId("wishes").addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    filter(byId("filter").value.trim());
  });
  byId("diversity").addEventListener("change", refreshAnew);
  byId("k").addEventListener("change", refreshAnew);
}
