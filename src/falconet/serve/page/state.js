// What the place "Try it" knows: who asks, what was shown, what is wished for. Nothing of it is stored.

export const state = {
  mode: "visitor", session: newSession(), user: null, picked: new Set(),
  shown: new Map(), retrieved: 0, asked: 0, filter: "", context: {}, sideBySide: false,
  verb: "chose", ranker: null, items: 0, beside: null, bundle: "",
};

export function person() {
  return state.mode === "visitor" ? { session_id: state.session } : { user_id: state.user };
}

export function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newSession() {
  return `visitor-${randomId()}`;
}
