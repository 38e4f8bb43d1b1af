// Why an item is where it is: what every stage made of it, what is near to it, and the same from a terminal.

import { call } from "./call.js";
import { byId, figure, make, toast } from "./dom.js";
import { title } from "./items.js";
import { state } from "./state.js";
import { wished } from "./wishes.js";

const MOST = 8; // features that are shown

function scoreRow(name, score, place) {
  return make("tr", {}, make("th", { text: name }), make("td", { text: score }), make("td", { text: place }));
}

/** A place, and among how many: "12, top 6 %". */
function among(place, all) {
  if (typeof place !== "number" || !all) return place;
  return `${place}, top ${Math.max(1, Math.ceil((100 * place) / all))} %`;
}

/** What every stage makes of an item: each retriever, the list they make together, the ranker. */
function scoreRows(item, all) {
  if (item.source === "popular") return [scoreRow("Popularity", item.retriever_score.toFixed(2), item.rank)];
  const each = Object.entries(item.retrievers);
  const rows = each.map(([name, one]) => scoreRow(name, one.score.toFixed(3), one.rank ? among(one.rank, all) : "not in its list"));
  if (each.length !== 1) rows.push(scoreRow(each.length ? "together" : "retriever", item.retriever_score.toFixed(3), among(item.retriever_rank, all)));
  if (state.ranker) rows.push(scoreRow(state.ranker, `${(100 * item.score).toFixed(1)} %`, among(item.rank, all)));
  return rows;
}

/** What the ranker reads, and what would be without it: the score and the place among the candidates. */
function featureRow(one, item) {
  const change = Math.round(1000 * (item.score - one.score)) / 10;
  const sign = change > 0 ? "+" : change < 0 ? "−" : "";
  return make("tr", {}, make("th", { text: one.name }), make("td", { text: one.value === null ? "–" : figure(one.value) }),
    make("td", { class: change > 0 ? "up" : change < 0 ? "down" : null, text: `${sign}${Math.abs(change).toFixed(1)}` }), make("td", { text: one.rank }));
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
  byId("why-scores").replaceChildren(...scoreRows(item, state.retrieved));
  byId("why-attributes").replaceChildren(...attributes(item));
  for (const part of ["why-near-part", "why-met-part", "why-features-part"]) byId(part).hidden = true;
  byId("why-curl").textContent = curl(wished());
  byId("why").dataset.id = String(item.item_id);
  byId("why").showModal();
  try {
    const [near, closer] = await Promise.all([
      call(`/v1/similar/${encodeURIComponent(item.item_id)}?k=6`), call("/v1/why", { ...wished(), item_id: item.item_id }),
    ]);
    if (byId("why").dataset.id === String(item.item_id)) showCloser(item, near, closer); // else another one was opened meanwhile
  } catch (error) {
    byId("why-reason").textContent = error.message;
  }
}

function showCloser(item, near, closer) {
  const names = (list) => list.map((one) => make("li", { text: title(one).name, title: `similarity ${one.similarity.toFixed(2)}` }));
  byId("why-near").replaceChildren(...names(near));
  byId("why-met").replaceChildren(...names(closer.near));
  byId("why-features").replaceChildren(...closer.features.slice(0, MOST).map((one) => featureRow(one, item)));
  byId("why-near-part").hidden = !near.length;
  byId("why-met-part").hidden = !closer.near.length;
  byId("why-features-part").hidden = !closer.features.length;
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
