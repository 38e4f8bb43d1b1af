// Where the page begins: which of its four places is shown, light or dark, and what is loaded first.

import { call } from "./call.js";
import { startComparison } from "./compare.js";
import { openData } from "./data.js";
import { byId, day, hideAlert, number, showAlert } from "./dom.js";
import { refresh } from "./list.js";
import { closeLive, openLive, startLive } from "./live.js";
import { showMoment } from "./moment.js";
import { showSamples, showStart, startPeople } from "./people.js";
import { openRuns } from "./runs.js";
import { state } from "./state.js";
import { startWhy } from "./why.js";
import { startWishes } from "./wishes.js";

const PLACES = { try: { open: () => {} }, runs: { open: openRuns }, data: { open: openData }, live: { open: openLive, close: closeLive } };
let place = null;
let loaded = false;

/** Show the place that the address names; any other name, such as that of a part to skip to, changes nothing. */
function go() {
  const name = location.hash.slice(1) || "try";
  if (!(name in PLACES) || name === place) return;
  PLACES[place]?.close?.();
  byId("why").close();
  place = name;
  for (const link of document.querySelectorAll(".places a")) {
    const here = link.hash === `#${name}`;
    byId(`place-${link.hash.slice(1)}`).hidden = !here;
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
    if (here) document.title = name === "try" ? "falconet" : `${link.textContent} · falconet`;
  }
  byId("keys").hidden = name !== "try";
  document.querySelector(".skip").hash = name === "try" && !state.sideBySide ? "results" : `place-${name}`;
  scrollTo(0, 0);
  PLACES[name].open();
}

async function load() {
  try {
    const [version, start, users] = await Promise.all([call("/version"), call("/v1/start"), call("/v1/users")]);
    tell(version);
    showStart(start);
    showSamples(users.samples);
    showMoment(version.context);
    loaded = true;
    hideAlert();
  } catch (error) {
    showAlert(error.message);
    byId("results").setAttribute("aria-busy", "false");
    return;
  }
  await refresh();
}

function tell(version) {
  Object.assign(state, { verb: version.verb, items: version.items, ranker: version.models.ranker, beside: version.beside, bundle: version.bundle });
  byId("verb").textContent = version.verb;
  const models = [...Object.values(version.models.retrievers), version.models.ranker].filter(Boolean).join(" + ");
  const until = day(version.data.to);
  byId("facts").textContent = `${models} · ${number(version.items)} items · ${number(version.users)} users ${until ? ` · data until ${until}` : ""} · bundle ${version.bundle}`;
}

function again() {
  if (!loaded) load();
  else if (place === "try") refresh();
  else PLACES[place].open();
}

// ---- light and dark, keys

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

function switchTheme() {
  const dark = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const next = dark === "dark" ? "light" : "dark";
  theme(next);
  remembered("falconet-theme", next);
}

function search(event) {
  if (event.key !== "/" || /^(INPUT|SELECT)$/.test(document.activeElement.tagName) || byId("why").open || place !== "try") return;
  event.preventDefault();
  byId(state.mode === "visitor" ? "find-item" : "find-user").focus();
}

theme(remembered("falconet-theme"));
startPeople();
startWishes();
startWhy();
startComparison();
startLive();
byId("retry").addEventListener("click", again);
byId("theme").addEventListener("click", switchTheme);
document.addEventListener("keydown", search);
addEventListener("hashchange", go);
go();
load();
