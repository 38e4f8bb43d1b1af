"use strict";

// What a person may ask for beside the list: a filter with its count, a more varied list, and why an item is where it is.

const FILTER_WAIT = 220; // milliseconds after the last letter

// ---- wishes

/** The body of the request for the list, with what is wished for. */
function wished() {
  const body = { ...person(), k: Number(byId("k").value) };
  if (state.filter) body.filter = state.filter;
  const diversity = Number(byId("diversity").value);
  return diversity ? { ...body, diversity } : body;
}

function said(text, bad = false) {
  byId("count").textContent = text;
  byId("count").classList.toggle("bad", bad);
  byId("filter").setAttribute("aria-invalid", String(bad));
}

let filterTurn = 0;
async function filter(text) {
  const mine = ++filterTurn;
  if (!text) {
    said("");
    return filterBy("");
  }
  try {
    const { items } = await call("/v1/filter", { filter: text });
    if (mine !== filterTurn) return;
    said(`${number.format(items)} of ${number.format(state.items)} items`);
    filterBy(text);
  } catch (error) {
    if (mine === filterTurn) said(error.message, true); // the list stays as it is until the filter can be read
  }
}

function filterBy(text) {
  if (text === state.filter) return;
  state.filter = text;
  state.shown = new Map();
  refresh();
}

let filterTimer;
byId("filter").addEventListener("input", () => {
  clearTimeout(filterTimer);
  filterTimer = setTimeout(() => filter(byId("filter").value.trim()), FILTER_WAIT);
});
byId("wishes").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(filterTimer);
  filter(byId("filter").value.trim());
});
byId("diversity").addEventListener("change", () => { state.shown = new Map(); refresh(); });

// ---- why

const cell = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });

function scoreRow(name, score, place) {
  const row = document.createElement("tr");
  row.append(cell("th", name), cell("td", score), cell("td", place));
  return row;
}

/** What every stage makes of an item: each retriever, the list they make together, the ranker. */
function scoreRows(item) {
  if (item.source === "popular") return [scoreRow("Popularity", item.retriever_score.toFixed(2), item.rank)];
  const each = Object.entries(item.retrievers);
  const rows = each.map(([name, one]) => scoreRow(name, one.score.toFixed(3), one.rank ?? "not in its list"));
  if (each.length !== 1) rows.push(scoreRow(each.length ? "together" : "retriever", item.retriever_score.toFixed(3), item.retriever_rank));
  if (state.ranker) rows.push(scoreRow(state.ranker, `${(100 * item.score).toFixed(1)} %`, item.rank));
  return rows;
}

function curl(body) {
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl ${location.origin}/v1/recommend -H 'content-type: application/json' -d '${quoted}'`;
}

async function why(item) {
  const { name, year } = title(item);
  byId("why-title").textContent = year ? `${name} (${year})` : name;
  byId("why-reason").textContent = item.reason;
  byId("why-scores").replaceChildren(...scoreRows(item));
  byId("why-attributes").replaceChildren(
    ...Object.entries(item.attributes).flatMap(([key, value]) => [cell("dt", key), cell("dd", Array.isArray(value) ? value.join(", ") : value)]),
  );
  byId("why-near").replaceChildren();
  byId("why-near-part").hidden = true;
  byId("why-curl").textContent = curl(wished());
  byId("why").dataset.id = String(item.item_id);
  byId("why").showModal();
  try {
    const near = await call(`/v1/similar/${encodeURIComponent(item.item_id)}?k=6`);
    if (byId("why").dataset.id !== String(item.item_id)) return; // another one was opened meanwhile
    byId("why-near").replaceChildren(...near.map((one) => cell("li", title(one).name)));
    byId("why-near-part").hidden = near.length === 0;
  } catch (error) {
    showAlert(error.message);
  }
}

byId("why-copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(byId("why-curl").textContent);
    toast("Copied");
  } catch {
    getSelection().selectAllChildren(byId("why-curl")); // no clipboard here: it is marked, to be copied by hand
  }
});
byId("why-close").addEventListener("click", () => byId("why").close());
byId("why").addEventListener("click", (event) => {
  if (event.target === byId("why")) byId("why").close(); // beside it
});
