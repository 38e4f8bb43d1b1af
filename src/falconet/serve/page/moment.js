// The moment of a request: what the models read of it, such as the hour or the device, as fields beside the list.

import { byId, make } from "./dom.js";
import { refreshAnew } from "./list.js";
import { state } from "./state.js";

const TYPES = { number: "number", date: "date", time: "datetime-local", text: "text" };

/** A field for each column of the moment: {name, kind, values}. What nobody fills in is not said. */
export function showMoment(columns) {
  const known = new Set(columns.map(({ name }) => name));
  for (const name of Object.keys(state.context)) if (!known.has(name)) delete state.context[name];
  byId("moment").hidden = !columns.length;
  byId("moment-fields").replaceChildren(...columns.map((column) =>
    make("label", { class: "field" }, make("span", { text: column.name }), column.values || column.kind === "bool" ? choice(column) : written(column))));
}

function choice({ name, kind, values }) {
  const options = kind === "bool" ? [[true, "yes"], [false, "no"]] : values.map((value) => [value, String(value)]);
  const change = (event) => say(name, options[event.target.value]?.[0]);
  return make("select", { "data-name": name, on: { change } }, make("option", { value: "", text: "not said" }),
    ...options.map(([value, text], i) => make("option", { value: i, selected: value === state.context[name], text })));
}

function written({ name, kind }) {
  const change = (event) => {
    const text = event.target.value;
    say(name, text === "" ? undefined : kind === "number" ? Number(text) : text);
  };
  return make("input", { "data-name": name, type: TYPES[kind], step: kind === "number" ? "any" : null, value: state.context[name], placeholder: "not said", autocomplete: "off", maxlength: 200, on: { change } });
}

function say(name, value) {
  if (value === undefined) delete state.context[name];
  else state.context[name] = value;
  refreshAnew();
}
