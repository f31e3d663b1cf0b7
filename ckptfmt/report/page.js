// SPDX-License-Identifier: Apache-2.0
// The page of a report. All text of the checkpoint enters the page by textContent.
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const tensors = data.tensors;
const byName = new Map(tensors.map((one) => [one.name, one]));
const $ = (id) => document.getElementById(id);
const ROW = 26, ROLES = ["weight", "optimizer", "other", "unknown"];
const LABELS = { weight: "weights", optimizer: "optimizer", other: "other", unknown: "weights or optimizer" };

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "onclick") node.addEventListener("click", value);
    else if (value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children.filter((one) => one !== null && one !== undefined));
  return node;
}
const SVG = "http://www.w3.org/2000/svg";
function draw(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (bytes >= 1023.95 && at < units.length - 1) { bytes /= 1024; at += 1; }
  return at ? `${bytes.toFixed(1)} ${units[at]}` : `${bytes} B`;
}
const shape = (dims) => `[${dims.join(", ")}]`;
const number = (value) => value === null || value === undefined ? "-" : Number(value.toPrecision(6)).toString();
const elements = (one) => one.shape.reduce((all, dim) => all * dim, 1);

// ---- theme
$("theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  label();
});
function label() {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
  $("theme").textContent = dark ? "Light" : "Dark";
  $("theme").setAttribute("aria-pressed", String(dark));
}
label();

// ---- summary
$("title").textContent = data.path;
const total = tensors.reduce((all, one) => all + one.bytes, 0);
const facts = [
  ["tensors", tensors.length.toLocaleString("en")],
  ["elements", tensors.reduce((all, one) => all + elements(one), 0).toLocaleString("en")],
  ["bytes of tensors", size(total)],
  ["level", data.level],
  ["data files", String(data.files)],
];
if (data.before !== undefined) facts.push(["compared with", data.before]);
if (data.metadata) facts.push(["metadata", data.metadata.slice(0, 400)]);
for (const [name, value] of facts) $("summary").append(make("div", {}, make("dt", {}, name), make("dd", {}, value)));
const byRole = ROLES.map((role) => [role, tensors.reduce((all, one) => all + (one.role === role ? one.bytes : 0), 0)]);
const shares = [];
for (const [role, bytes] of byRole) {
  if (!bytes) continue;
  const part = make("div", { class: role });
  part.style.width = `${100 * bytes / total}%`;
  $("share").append(part);
  const text = `${LABELS[role]} ${size(bytes)} (${(100 * bytes / total).toFixed(1)}%)`;
  shares.push(text);
  $("share-text").append(make("span", { class: `key ${role}`, "aria-hidden": "true" }), text);
}
$("share").setAttribute("aria-label", shares.join(", "));

// ---- warnings
let warned = 0;
for (const one of tensors) {
  const found = [...(one.warnings || []), ...(one.error ? [one.error] : [])];
  if (!found.length) continue;
  warned += 1;
  if (warned <= 200) $("warnings").append(make("li", {}, make("button", { type: "button", onclick: () => select(one.name, true) }, one.name), `: ${found.join(", ")}`));
}
if (warned > 200) $("warnings").append(make("li", {}, `and ${warned - 200} tensors more`));
const sampled = tensors.filter((one) => one.sampled).length;
const unread = sampled ? ` Of ${sampled.toLocaleString("en")} large tensors only a sample was read.` : "";
if (!warned) $("warnings").replaceWith(make("p", {}, data.sample_bytes ? `None: no NaN, infinity, damage, or tensor or row of zeros was found.${unread}` : "Values were not read."));
else if (sampled) $("warnings").after(make("p", {}, unread.trim()));

// ---- comparison
const CHANGES = ["unreadable", "changed", "retyped", "added", "removed"];
if (data.comparison !== undefined) {
  $("s-comparison").hidden = false;
  const list = data.comparison.rows;
  const counts = { same: data.comparison.same };
  for (const one of list) counts[one.change] = (counts[one.change] || 0) + 1;
  $("changed").textContent = [...CHANGES, "same"].filter((kind) => counts[kind]).map((kind) => `${counts[kind].toLocaleString("en")} ${kind}`).join(", ") || "no tensors";
  list.sort((a, b) => CHANGES.indexOf(a.change) - CHANGES.indexOf(b.change) || (b.relative || 0) - (a.relative || 0));
  const head = make("tr", {});
  for (const [text, right] of [["name"], ["change"], ["elements", 1], ["largest difference", 1], ["largest relative", 1]]) head.append(make("th", { scope: "col", class: right ? "n" : null }, text));
  $("changes").tHead.append(head);
  for (const one of list.slice(0, 1000)) {
    const before = one.before ? ` from ${one.before[0]} ${shape(one.before[1])}` : "";
    const name = byName.has(one.name) ? make("button", { type: "button", title: one.name, onclick: () => select(one.name, true) }, one.name) : one.name;
    $("changes").tBodies[0].append(make("tr", {}, make("td", {}, name), make("td", {}, one.change + before + (one.error ? `: ${one.error}` : "") + (one.nans ? `, ${one.nans.toLocaleString("en")} NaN in one only` : "")),
      make("td", { class: "n" }, typeof one.elements === "number" ? one.elements.toLocaleString("en") : ""),
      make("td", { class: "n" }, one.change === "changed" ? number(one.largest) : ""),
      make("td", { class: "n" }, one.change === "changed" ? number(one.relative) : "")));
  }
  if (!list.length) $("changes").parentNode.hidden = true;
  if (list.length > 1000) $("changes").parentNode.after(make("p", {}, `The first 1,000 of ${list.length.toLocaleString("en")} are shown.`));
}

// ---- treemap
const mark = tensors.some((one) => one.name.includes("/")) ? "/" : ".";
const root = { name: "", children: new Map(), bytes: 0, count: 0, roles: {} };
for (const one of tensors) {
  let node = root;
  const parts = one.name.split(mark);
  for (let at = -1; at < parts.length; at += 1) {
    if (at >= 0) {
      const part = parts[at];
      if (!node.children.has(part)) node.children.set(part, { name: part, parent: node, children: new Map(), bytes: 0, count: 0, roles: {} });
      node = node.children.get(part);
    }
    node.bytes += one.bytes;
    node.count += 1;
    node.roles[one.role] = (node.roles[one.role] || 0) + one.bytes;
  }
  node.tensor = one;
}
let shown = root;
function full(node) {
  const parts = [];
  for (; node.parent; node = node.parent) parts.unshift(node.name);
  return parts.join(mark);
}
function zoom(node, focus) {
  while (node.children.size === 1 && !node.tensor) node = node.children.values().next().value;
  if (!node.children.size) { select(node.tensor.name, true); node = node.parent || node; }
  shown = node;
  const crumbs = [];
  for (let one = node; one; one = one.parent) crumbs.unshift(one);
  $("crumbs").replaceChildren();
  crumbs.forEach((one, at) => {
    const name = one.name || (one.parent ? "(empty)" : "all");
    if (at) $("crumbs").append(` ${mark} `);
    $("crumbs").append(one === node ? make("strong", {}, name) : make("button", { type: "button", onclick: () => zoom(one, true) }, name));
  });
  $("crumbs").append(` ${size(node.bytes)}, ${node.count.toLocaleString("en")} tensors`);
  paint();
  if (focus && $("map").firstChild) $("map").firstChild.focus({ preventScroll: true });
}
// Of each module so many of the largest parts are drawn.
const PARTS = 300, INNER = 500;
function parts(node, most) {
  const children = [...node.children.values()].filter((one) => one.bytes).sort((a, b) => b.bytes - a.bytes);
  const rest = children.splice(most);
  const list = children.map((one) => ({ one, value: one.bytes }));
  if (node.tensor && node.tensor.bytes) list.push({ one: { ...node, children: new Map(), name: "(itself)", bytes: node.tensor.bytes, roles: { [node.tensor.role]: 1 } }, value: node.tensor.bytes });
  if (rest.length) list.push({ one: null, value: rest.reduce((all, one) => all + one.bytes, 0), count: rest.length });
  return list;
}
function paint() {
  const map = $("map");
  const list = parts(shown, PARTS);
  for (const entry of list) {
    if (entry.one && entry.one.children.size && list.length * entry.one.children.size <= 4 * INNER) { entry.children = parts(entry.one, INNER); entry.value = 0; }
  }
  const tree = d3.hierarchy({ children: list }).sum((one) => one.value || 0);
  d3.treemap().size([map.clientWidth, map.clientHeight]).round(true).paddingTop((one) => one.depth === 1 && one.children ? 20 : 0)(tree);
  map.replaceChildren();
  for (const leaf of tree.descendants()) {
    const { one, count } = leaf.data;
    if (one === undefined) continue;
    const role = one ? ROLES.reduce((best, name) => (one.roles[name] || 0) > (one.roles[best] || 0) ? name : best, ROLES[0]) : "rest";
    const text = one ? `${one.name || "(empty)"}${one.children.size ? mark : ""}` : `${count} more`;
    const what = one ? `${size(leaf.value)}, ${Object.keys(one.roles).length > 1 ? "mostly " : ""}${LABELS[role]}` : size(leaf.value);
    const cell = make("button", { type: "button", class: role, title: `${one ? full(one) || text : text}\n${what}`, "aria-label": `${text}, ${what}` });
    const width = leaf.x1 - leaf.x0, height = leaf.y1 - leaf.y0;
    if (width < 2 || height < 2) continue;
    if (width > 34 && height > 18) cell.append(make("span", {}, `${text} ${size(leaf.value)}`));
    cell.style.left = `${leaf.x0}px`; cell.style.top = `${leaf.y0}px`;
    cell.style.width = `${width}px`; cell.style.height = `${height}px`;
    if (one) cell.addEventListener("click", () => zoom(one, true));
    else cell.disabled = true;
    map.append(cell);
  }
}

// ---- table
const COLUMNS = [
  ["name", (one) => one.name], ["dtype", (one) => one.dtype], ["shape", (one) => elements(one), 1], ["bytes", (one) => one.bytes, 1],
  ["role", (one) => one.role], ["file", (one) => one.shard === null ? -1 : one.shard, 1],
  ["mean", (one) => one.stats ? one.stats.mean : null, 1], ["std", (one) => one.stats ? one.stats.deviation : null, 1],
  ["min", (one) => one.stats ? one.stats.low : null, 1], ["max", (one) => one.stats ? one.stats.high : null, 1],
];
let visible = tensors.slice(), order = [0, 1], selected = null;
COLUMNS.forEach(([name, , right], at) => {
  $("heads").append(make("th", { scope: "col", class: right ? "n" : null, "aria-sort": at ? "none" : "ascending" },
    make("button", { type: "button", onclick: () => { order = [at, order[0] === at ? -order[1] : 1]; sort(); rows(true); } }, name)));
});
function sort() {
  const [at, direction] = order, key = COLUMNS[at][1];
  visible.sort((a, b) => {
    const x = key(a), y = key(b);
    if (x === y) return 0;
    if (x === null) return 1;
    if (y === null) return -1;
    return (x < y ? -1 : 1) * direction;
  });
  [...$("heads").children].forEach((head, column) => head.setAttribute("aria-sort", column !== at ? "none" : direction > 0 ? "ascending" : "descending"));
}
function matcher(text) {
  if (!text) return () => true;
  if (text.length > 2 && text.startsWith("/") && text.endsWith("/")) { const found = new RegExp(text.slice(1, -1)); return (name) => found.test(name); }
  if (!/[*?]/.test(text)) return (name) => name.includes(text);
  const glob = text.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".");
  const found = new RegExp(`^${glob}$`, "s");
  return (name) => found.test(name);
}
function filter() {
  let matches;
  try { matches = matcher($("filter").value); $("filter").removeAttribute("aria-invalid"); } catch (error) { $("filter").setAttribute("aria-invalid", "true"); $("count").textContent = "not a regular expression"; return; }
  visible = tensors.filter((one) => matches(one.name));
  sort();
  $("count").textContent = `${visible.length.toLocaleString("en")} of ${tensors.length.toLocaleString("en")} tensors`;
  rows(true);
}
function rows(top) {
  const box = $("rows");
  if (top) box.scrollTop = 0;
  // Only the rows in view are in the page.
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 10), last = Math.min(visible.length, first + Math.ceil(box.clientHeight / ROW) + 20);
  const space = (count) => { const row = make("tr", { class: "space", "aria-hidden": "true" }, make("td", { colspan: COLUMNS.length })); row.firstChild.style.height = `${count * ROW}px`; return row; };
  const list = [];
  if (first) list.push(space(first));
  for (let at = first; at < last; at += 1) {
    const one = visible[at], stats = one.stats;
    list.push(make("tr", { "aria-rowindex": at + 2, "aria-selected": one.name === selected ? "true" : null },
      make("td", {}, make("button", { type: "button", title: one.name, class: one.warnings && one.warnings.length || one.error ? "warn" : null, onclick: () => select(one.name) }, one.name || "(empty)")),
      make("td", {}, one.dtype), make("td", { class: "n" }, shape(one.shape)), make("td", { class: "n" }, size(one.bytes)), make("td", {}, one.role),
      make("td", { class: "n" }, one.shard === null ? `${one.slice_count} slices` : String(one.shard)),
      ...["mean", "deviation", "low", "high"].map((name) => make("td", { class: "n" }, stats ? number(stats[name]) : ""))));
  }
  if (last < visible.length) list.push(space(visible.length - last));
  $("body").replaceChildren(...list);
  $("body").parentNode.setAttribute("aria-rowcount", visible.length + 1);
}
$("rows").addEventListener("scroll", () => requestAnimationFrame(() => rows(false)));
$("filter").addEventListener("input", filter);

// ---- one tensor
function select(name, move) {
  const one = byName.get(name);
  selected = name;
  const known = [["dtype", one.dtype], ["shape", shape(one.shape)], ["bytes", size(one.bytes)], ["stored", size(one.stored)], ["role", one.role], ["data file", one.shard === null ? "several" : String(one.shard)]];
  const stats = one.stats;
  if (stats) {
    known.push(["read", one.sampled ? `a sample: ${stats.count.toLocaleString("en")} of ${elements(one).toLocaleString("en")} elements` : "all elements"]);
    for (const [text, field] of [["min", "low"], ["max", "high"], ["mean", "mean"], ["std", "deviation"]]) known.push([text, number(stats[field])]);
    for (const [text, field] of [["zero", "zeros"], ["infinite", "infinite"], ["NaN", "nans"]]) if (stats[field]) known.push([text, stats[field].toLocaleString("en")]);
  }
  const table = make("table", {});
  for (const [text, value] of known) table.append(make("tr", {}, make("th", { scope: "row" }, text), make("td", {}, value)));
  $("h-detail").textContent = name;
  $("facts").replaceChildren(table);
  for (const text of [...(one.warnings || []), ...(one.error ? [one.error] : [])]) $("facts").append(make("p", { class: "warn" }, text));
  if (stats && stats.counts.length && stats.low !== stats.high) $("facts").append(histogram(stats, one.sampled));
  if (one.slices) $("facts").append(slices(one));
  $("detail").hidden = false;
  rows(false);
  if (move) $("detail").scrollIntoView({ block: "nearest" });
}
function histogram(stats, sampled) {
  const width = 320, height = 130, most = Math.max(...stats.counts), step = width / stats.counts.length;
  const text = `histogram of ${sampled ? "a sample" : "all elements"} from ${number(stats.low)} to ${number(stats.high)}`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height + 18}`, role: "img", "aria-label": text, width });
  stats.counts.forEach((count, at) => {
    const tall = count ? Math.max(1, height * count / most) : 0;
    const bar = draw("rect", { class: "bar", x: at * step + 0.5, y: height - tall, width: step - 1, height: tall });
    bar.append(draw("title", {}, count.toLocaleString("en")));
    svg.append(bar);
  });
  svg.append(draw("text", { x: 0, y: height + 14 }, number(stats.low)), draw("text", { x: width, y: height + 14, "text-anchor": "end" }, number(stats.high)));
  return make("figure", {}, svg, make("figcaption", {}, text));
}
function slices(one) {
  const dims = one.shape.length ? one.shape : [1], rowsOf = dims.length > 1 ? dims[0] : 1, columns = dims.length > 1 ? dims[1] : dims[0];
  const width = 320, height = Math.min(200, Math.max(40, 320 * rowsOf / Math.max(columns, 1)));
  const text = `${one.slice_count} slices${dims.length > 2 ? ", by the first two dimensions" : ""}, coloured by data file`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text, width });
  for (const [start, lengths, shard] of one.slices) {
    const [y, x] = dims.length > 1 ? start : [0, start[0] || 0], [tall, wide] = dims.length > 1 ? lengths : [1, lengths[0] || 1];
    const box = draw("rect", { class: "slice", x: width * x / columns, y: height * y / rowsOf, width: width * wide / columns, height: height * tall / rowsOf, fill: `hsl(${shard * 137.5 % 360} 50% 45%)` });
    box.append(draw("title", {}, `file ${shard}: from ${shape(start)}, ${shape(lengths)}`));
    svg.append(box);
  }
  return make("figure", {}, svg, make("figcaption", {}, text + (one.slices.length < one.slice_count ? `; the first ${one.slices.length} are shown` : "")));
}

if (tensors.length) { zoom(root); } else { $("map").hidden = true; }
filter();
let waiting = 0;
addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => { paint(); rows(false); }); });
})();
