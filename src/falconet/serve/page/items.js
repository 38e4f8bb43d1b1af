// How an item looks: its name, its genres, and a cover painted from them.

const HUES = {
  Action: 6, Adventure: 152, Animation: 184, Children: 196, Comedy: 22, Crime: 258, Documentary: 166, Drama: 222, Fantasy: 282,
  "Film-Noir": 236, Horror: 352, IMAX: 204, Musical: 316, Mystery: 268, Romance: 338, "Sci-Fi": 208, Thriller: 176, War: 104, Western: 30,
};

/** Name and year: "Matrix, The (1999)" is The Matrix of 1999. */
export function title(item) {
  const found = /^(.*?)\s*\((\d{4})\)\s*$/.exec(item.title);
  let name = found ? found[1] : item.title;
  const turned = /^(.*), (The|A|An|Der|Die|Das|La|Le|Les|El|Il|L')$/.exec(name);
  if (turned) name = `${turned[2]} ${turned[1]}`;
  return { name, year: item.attributes?.year ?? (found ? found[2] : "") };
}

export function genres(item) {
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

/** A cover of its own for every item: hues from the genres, shape and place from the id. */
export function paint(element, item) {
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
