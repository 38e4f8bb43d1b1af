// Calls to the server that the page came from; there is no other.

// Whole numbers that JavaScript would round stay strings; the server reads both.
const exact = (key, value, context) =>
  typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) && context ? context.source : value;

/** The content of an answer. A body makes it a POST; `token` is sent along. Throws an Error that says what is wrong. */
export async function call(path, body, token) {
  const headers = { ...(body === undefined ? {} : { "content-type": "application/json" }), ...(token ? { authorization: `Bearer ${token}` } : {}) };
  const options = body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer.");
  }
  let content;
  try {
    content = JSON.parse(await response.text(), exact);
  } catch {
    throw new Error(`The server answers ${response.status}, and nothing that can be read.`);
  }
  if (!response.ok) throw new Error(content.error?.message ?? `The server answers ${response.status}.`);
  return content;
}
