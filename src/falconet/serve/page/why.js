// Why an item is where it is: what every stage made of it, what is near to it, and the same from a terminal.

import { call } from "./call.js";
import { byId, make, showAlert, toast } from "./dom.js";
import { title } from "./items.js";
import { state } from "./state.js";
import { wished } from "./wishes.js";

function scoreRow(name, score, place) {
  return make("tr", {}, make("th", { text: name }), make("td", { text: score }), make("td", { text: place }));
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

function attributes(item) {
  return Object.entries(item.attributes).flatMap(([key, value]) => [
    make("dt", { text: key }), make("dd", { text: Array.isArray(value) ? value.join(", ") : value ?? "–" }),
  ]);
}

function curl(body) {
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl ${location.origin}/v1/recommend -H 'content-type: application/json' -d '${quoted}'`;
}

export async function why(item) {
  const { name, year } = title(item);
  byId("why-title").textContent = year ? `${name} (${year})` : name;
  byId("why-reason").textContent = item.reason;
  byId("why-scores").replaceChildren(...scoreRows(item));
  byId("why-attributes").replaceChildren(...attributes(item));
  byId("why-near").replaceChildren();
  byId("why-near-part").hidden = true;
  byId("why-curl").textContent = curl(wished());
  byId("why").dataset.id = String(item.item_id);
  byId("why").showModal();
  try {
    const near = await call(`/v1/similar/${encodeURIComponent(item.item_id)}?k=6`);
    if (byId("why").dataset.id !== String(item.item_id)) return; // another one was opened meanwhile
    byId("why-near").replaceChildren(...near.map((one) => make("li", { text: title(one).name })));
    byId("why-near-part").hidden = near.length === 0;
  } catch (error) {
    showAlert(error.message);
  }
}

async function copy() {
  try {
    await navigator.clipboard.writeText(byId("why-curl").textContent);
    toast("Copied");
  } catch {
    getSelection().selectAllChildren(byId("why-curl")); // no clipboard here: it is marked, to be copied by hand
  }
}

export function startWhy() {
  const dialog = byId("why");
  byId("why-copy").addEventListener("click", copy);
  byId("why-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside it
  });
}
