// SPDX-License-Identifier: Apache-2.0
// The page of a report. All text of the checkpoint enters the page by textContent.
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const tensors = data.tensors, health = data.health, comparison = data.comparison;
const numeric = new Intl.Collator("en", { numeric: true }).compare;
[...tensors].sort((a, b) => numeric(a.name, b.name)).forEach((one, at) => { one.rank = at; });
const byName = new Map(data.grouped ? [] : tensors.map((one) => [one.name, one]));
const changeOf = new Map(comparison ? comparison.rows.map((one) => [one.name, one.change]) : []);
const $ = (id) => document.getElementById(id);
const ROW = 26, ROLES = ["weight", "optimizer", "other", "unknown"];
const CHANGES = ["unreadable", "removed", "added", "retyped", "changed", "not compared"];
const LABELS = { weight: "weights", optimizer: "optimizer", other: "other", unknown: "weights or optimizer" };
const GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH";

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
const count = (value) => value.toLocaleString("en");
const plural = (value, what) => `${count(value)} ${what}${value === 1 ? "" : "s"}`;
const shape = (dims) => `[${dims.join(", ")}]`;
// Integers are text, so that all of their digits are shown.
function number(value, digits = 7) {
  if (value === null || value === undefined) return "-";
  if (typeof value === "string") return value.replace("Infinity", "inf");
  const tall = Math.abs(value);
  if (Number.isInteger(value) && tall < 1e9) return String(value);
  if (tall < 1e-3 || tall >= 1e9) return value.toExponential(Math.min(digits, 5) - 1).replace(/\.?0+e/, "e");
  // No digit of the whole part is rounded.
  return Number(value.toPrecision(Math.max(digits, Math.trunc(tall).toString().length + 1))).toString();
}
const elements = (one) => one.elements !== undefined ? one.elements : one.shape.reduce((all, dim) => all * dim, 1);
// The end of a name tells it from others.
const ended = (text, room) => text.length <= room ? text : `…${text.slice(text.length - Math.max(room - 1, 4))}`;

// ---- theme
function label() {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
  $("theme").textContent = dark ? "Light" : "Dark";
  $("theme").setAttribute("aria-pressed", String(dark));
  return dark;
}
$("theme").addEventListener("click", () => { document.documentElement.dataset.theme = label() ? "light" : "dark"; label(); });
label();

// ---- summary
$("title").textContent = data.path;
const sum = (at) => data.parts.reduce((all, part) => all + part[at], 0), total = sum(3);
const isConverted = data.format !== "tensorflow";
const facts = [["tensors", count(data.count)], ["elements", count(sum(2))], ["bytes of tensors", size(total)], ...(isConverted ? [["format", data.format]] : [["level", data.level], ["data files", String(data.files)]])];
if (comparison) facts.push(["compared with", comparison.before]);
if (data.metadata) facts.push(["metadata", data.metadata]);
for (const [name, value] of facts) $("summary").append(make("div", { class: value.length > 60 ? "wide" : null }, make("dt", {}, name), make("dd", {}, value)));
const shares = [];
for (const role of ROLES) {
  const [, , parameters, bytes] = data.parts.find((part) => part[0] === role) || [role, 0, 0, 0];
  if (!bytes) continue;
  const part = make("div", { class: role });
  part.style.width = `${100 * bytes / total}%`;
  $("share").append(part);
  const text = `${LABELS[role]} ${plural(parameters, "element")}, ${size(bytes)} (${(100 * bytes / total).toFixed(1)}%)`;
  shares.push(text);
  $("share-text").append(make("span", { class: "share" }, make("span", { class: `key ${role}`, "aria-hidden": "true" }), text));
}
$("share").setAttribute("aria-label", shares.join("; "));

// ---- health
function say(text, warn) { $("health").append(make("li", { class: warn ? "warn" : null }, text)); }
for (const text of health.findings) say(text, true);
const limit = health.seconds === null ? "" : ` within ${health.seconds} s${health.limit === null ? "" : ` and ${size(health.limit)}`} (no limit: --full)`;
if (isConverted) say(`Not verified: the values are those of a converted copy of this ${data.format} file. ckptfmt verify compares the file with its checksums, if it has any.`);
else if (health.complete) say(health.findings.length ? `Verified: all of ${plural(data.count, "tensor")}, with the problems above.` : `Verified: every byte of ${plural(data.count, "tensor")} was compared with its checksum, no damage was found.`);
else say(`Verified: ${count(health.verified)} of ${plural(data.count, "tensor")}${limit}. Damage of the others was not looked for; ckptfmt verify does.`);
const unread = health.numbers - health.whole - health.sampled - health.damaged;
const read = [`${count(health.whole)} of ${plural(health.numbers, "tensor")} of numbers read whole`];
if (health.sampled) read.push(`${count(health.sampled)} of ${count(health.numbers)} sampled (~)`);
if (health.damaged) read.push(`${count(health.damaged)} damaged`);
if (unread > 0) read.push(`${count(unread)} not read`);
say(`Measured: ${read.join(", ")}${health.sampled || unread > 0 ? limit : ""}.`);
if (!health.warned && health.whole + health.sampled) say("No NaN, infinity, tensor of zeros or row of zeros was found in what was measured.");
if (health.warned) say(`${plural(health.warned, "tensor")} with warnings${health.warned > 20 ? `: ${health.kinds.slice(0, 8).map(([text, times]) => `${text} (${count(times)})`).join(", ")}` : ""}:`, true);
for (const [name, text] of health.warnings) {
  const shown = byName.has(name) ? make("button", { type: "button", onclick: () => select(name) }, name) : name;
  $("warnings").append(make("li", {}, shown, `: ${text}`));
}
if (health.warned > health.warnings.length) $("warnings").append(make("li", {}, `and ${plural(health.warned - health.warnings.length, "tensor")} more`));

// ---- tables, of which only the rows in view are in the page
let character = 8;
function table(box, columns, source, first) {
  // What is cut of a dtype or a number may be what matters.
  for (const column of columns.filter((one) => one.fit)) for (const one of source) column.width = Math.max(column.width, 9 * column.cell(one).length + 17);
  let visible = source.slice(), order = first;
  const head = make("tr", {}), body = make("tbody", {});
  const inside = make("table", { "aria-rowcount": source.length + 1 }, make("colgroup", {}, ...columns.map((column) => make("col", column.width ? { style: `width:${column.width}px` } : {}))), make("thead", {}, head), body);
  columns.forEach((column, at) => head.append(make("th", { scope: "col", class: column.right ? "n" : null },
    make("button", { type: "button", onclick: () => { order = [at, order[0] === at ? -order[1] : 1]; sort(); paint(true); } }, column.title))));
  inside.style.minWidth = `${columns.reduce((every, column) => every + (column.width || 180), 0)}px`;
  box.append(inside);
  function sort() {
    const [at, direction] = order, key = columns[at].key;
    visible.sort((a, b) => {
      const x = key(a), y = key(b);
      if (x === y) return 0;
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return (x < y ? -1 : 1) * direction;
    });
    [...head.children].forEach((one, column) => one.setAttribute("aria-sort", column !== at ? "none" : direction > 0 ? "ascending" : "descending"));
  }
  function paint(top) {
    if (top) box.scrollTop = 0;
    const room = Math.floor(head.firstChild.clientWidth / character) - 3;
    const begin = Math.max(0, Math.floor(box.scrollTop / ROW) - 10), end = Math.min(visible.length, begin + Math.ceil(box.clientHeight / ROW) + 20);
    const space = (rows) => { const row = make("tr", { class: "space", "aria-hidden": "true" }, make("td", { colspan: columns.length })); row.firstChild.style.height = `${rows * ROW}px`; return row; };
    const focus = body.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    const list = begin ? [space(begin)] : [];
    for (let at = begin; at < end; at += 1) {
      const one = visible[at], text = one.name || "(empty)";
      const name = byName.has(one.name)
        ? make("button", { type: "button", title: text, "aria-label": text, class: one.warnings || one.error ? "warn" : null, onclick: () => select(one.name) }, ended(text, room))
        : make("span", { title: text, "aria-label": text }, ended(text, room));
      list.push(make("tr", { "aria-rowindex": at + 2, "aria-selected": one.name === selected ? "true" : null }, make("td", {}, name),
        ...columns.slice(1).map((column) => { const cell = column.cell(one); return make("td", { class: column.right ? "n" : null, title: cell.length > 12 ? cell : null }, cell); })));
    }
    if (end < visible.length) list.push(space(visible.length - end));
    body.replaceChildren(...list);
    if (focus !== null) ([...body.querySelectorAll("button")].find((one) => one.getAttribute("aria-label") === focus) || box).focus();
    inside.setAttribute("aria-rowcount", visible.length + 1);
  }
  box.tabIndex = -1;
  box.addEventListener("scroll", () => requestAnimationFrame(() => paint(false)));
  sort();
  return { paint, show(matches) { visible = source.filter(matches); sort(); paint(true); return visible.length; } };
}
let selected = null;
const figure = (one, field, digits) => one.stats ? `${one.sampled ? "~" : ""}${one.dtype.startsWith("complex") ? "|x| " : ""}${number(one.stats[field], digits)}` : "";
const key = (value) => value === null || value === undefined ? null : Number(value);
const roleOf = (one) => one.role || Object.keys(one.roles).map((role) => LABELS[role]).join(", ");
const all = table($("rows"), [
  { title: "name", key: (one) => one.rank },
  ...(data.grouped ? [{ title: "tensors", width: 90, right: 1, key: (one) => one.tensors, cell: (one) => count(one.tensors) }, { title: "elements", width: 140, right: 1, key: elements, cell: (one) => count(elements(one)) }] : [
    { title: "dtype", width: 80, fit: 1, key: (one) => one.dtype, cell: (one) => one.dtype },
    { title: "shape", width: 130, right: 1, key: elements, cell: (one) => shape(one.shape) }]),
  { title: "bytes", width: 86, right: 1, key: (one) => one.bytes, cell: (one) => size(one.bytes) },
  { title: "role", width: data.grouped ? 180 : 84, key: roleOf, cell: roleOf },
  ...(data.grouped || isConverted ? [] : [
    { title: "file", width: 76, right: 1, key: (one) => one.shard === null ? -1 : one.shard, cell: (one) => one.shard === null ? plural(one.slice_count, "slice") : String(one.shard) }]),
  ...(data.grouped ? [] : [
    ...[["mean", "mean"], ["std", "deviation"], ["min", "low"], ["max", "high"]].map(([title, field]) => ({ title, width: 94, fit: 1, right: 1, key: (one) => one.stats ? key(one.stats[field]) : null, cell: (one) => figure(one, field, 4) }))]),
], tensors, [0, 1]);
if (data.grouped) $("grouped").textContent = `${plural(data.count, "tensor")} are too many for one page: each row is a module with its tensors, ${plural(tensors.length, "row")} in all.`;

// ---- comparison
let changes = null, kind = null;
if (comparison) {
  $("s-comparison").hidden = false;
  const kinds = [...CHANGES, "same"].filter((name) => comparison.counts[name]);
  $("compared").textContent = kinds.map((name) => `${count(comparison.counts[name])} ${name}`).join(", ") || "no tensors";
  if (comparison.unread) $("compared").append(` (${count(comparison.unread)} not read: equal stored checksums)`);
  const cut = CHANGES.reduce((every, name) => every + (comparison.counts[name] || 0), 0) - comparison.rows.length;
  if (cut) $("compared").append(`; ${count(cut)} of these are not listed`);
  for (const name of ["all", ...kinds.filter((one) => one !== "same")]) {
    $("kinds").append(make("button", { type: "button", "aria-pressed": String(name === "all"), onclick: (event) => {
      kind = name === "all" ? null : name;
      [...$("kinds").children].forEach((one) => one.setAttribute("aria-pressed", String(one === event.currentTarget)));
      filter();
    } }, name));
  }
  const kindOf = (side) => side ? `${side[0]} ${shape(side[1])}` : "";
  const what = (one) => one.change === "retyped" ? `${kindOf(one.before)} → ${kindOf(one.after)}` : one.error ? one.error : one.nans && (one.nans[0] || one.nans[1]) ? `NaN: ${count(one.nans[0])} before, ${count(one.nans[1])} after` : kindOf(one.after || one.before);
  changes = table($("changes"), [
    { title: "name", key: (one) => one.name },
    { title: "change", width: 110, key: (one) => CHANGES.indexOf(one.change), cell: (one) => one.change },
    { title: "what", width: 310, key: what, cell: what },
    { title: "elements", width: 110, right: 1, key: (one) => one.elements, cell: (one) => typeof one.elements === "number" ? count(one.elements) : "" },
    { title: "largest", width: 104, right: 1, key: (one) => key(one.largest), cell: (one) => one.change === "changed" ? number(one.largest, 4) : "" },
    { title: "relative", width: 104, right: 1, key: (one) => key(one.relative), cell: (one) => one.change === "changed" ? number(one.relative, 4) : "" },
  ], comparison.rows, [1, 1]);
  if (comparison.metadata.length) {
    const rows = comparison.metadata.map(([name, ...sides]) => make("tr", {}, make("th", { scope: "row" }, name), ...sides.map((text) => make("td", {}, text === null ? "-" : text))));
    $("metadata").append(make("h3", {}, "Metadata"), make("table", {}, make("thead", {}, make("tr", {}, ...["name", "before", "after"].map((text) => make("th", { scope: "col" }, text)))), make("tbody", {}, ...rows)));
  }
}

// ---- filter
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
  const found = (one) => matches(one.name) || one.key !== undefined && matches(one.key);
  const shown = all.show(found);
  $("count").textContent = `${count(shown)} of ${plural(tensors.length, data.grouped ? "group" : "tensor")}`;
  if (changes) changes.show((one) => found(one) && (kind === null || one.change === kind));
}
$("filter").addEventListener("input", filter);

// ---- map: a tree of modules, drawn two levels at a time
// Names are split at slashes; at dots, if none has a slash.
const mark = tensors.some((one) => one.name !== GRAPH && one.name.includes("/")) ? "/" : ".";
const root = { name: "all", children: new Map(), bytes: 0, count: 0, tensor: null, parent: null, shares: {} };
const COLOURS = { role: (one) => one.roles || { [one.role]: one.bytes }, change: (one) => ({ [changeOf.get(one.name) || "same"]: one.bytes }) };
let colours = "role", shown = root, leftOut = 0;
function grow() {
  root.children = new Map(); root.bytes = root.count = leftOut = 0; root.shares = {};
  for (const one of tensors) {
    if (one.name === GRAPH) { leftOut = one.bytes; continue; }
    const parts = one.name.split(mark), shares = Object.entries(COLOURS[colours](one));
    const add = (node) => { node.bytes += one.bytes; node.count += one.tensors || 1; for (const [name, bytes] of shares) node.shares[name] = (node.shares[name] || 0) + bytes; };
    let node = root;
    add(root);
    for (const part of one.tensors && !parts[parts.length - 1] ? parts.slice(0, -1) : parts) {
      if (!node.children.has(part)) node.children.set(part, { name: part, children: new Map(), bytes: 0, count: 0, tensor: null, parent: node, shares: {} });
      node = node.children.get(part);
      add(node);
    }
    node.tensor = one;
  }
}
const pathOf = (node) => { const names = []; for (; node.parent; node = node.parent) names.unshift(node.name); return names; };
const full = (node) => pathOf(node).join(mark);
// The first module below which there is something to choose from.
function beginning() {
  let node = root, found = root;
  while (!node.tensor) {
    const largest = [...node.children.values()].sort((a, b) => b.bytes - a.bytes)[0];
    if (!largest || largest.bytes < 0.9 * node.bytes) break;
    node = largest;
    if (node.children.size > 1 && !node.tensor) found = node;
  }
  return found;
}
const PARTS = 48, INNER = 60, LARGE = 0.03;
// Of many children, the large ones, and the others in groups that follow each other by name.
function folded(node) {
  const list = [...node.children.values()].filter((one) => one.bytes).sort((a, b) => b.bytes - a.bytes);
  if (list.length <= PARTS) return list;
  const single = list.filter((one) => one.bytes > LARGE * node.bytes), rest = list.slice(single.length).sort((a, b) => numeric(a.name, b.name));
  const step = Math.ceil(rest.length / (PARTS - single.length));
  for (let at = 0; at < rest.length; at += step) {
    const some = rest.slice(at, at + step);
    if (some.length === 1) { single.push(some[0]); continue; }
    const group = { name: `${some[0].name} … ${some[some.length - 1].name}`, first: some[0].name, last: some[some.length - 1].name, children: new Map(some.map((one) => [one.name, one])), bytes: 0, count: 0, tensor: null, parent: node, shares: {} };
    for (const one of some) { group.bytes += one.bytes; group.count += one.count; for (const [name, bytes] of Object.entries(one.shares)) group.shares[name] = (group.shares[name] || 0) + bytes; }
    single.push(group);
  }
  return single;
}
// A module with a single child shares its cell.
function joined(node) {
  let one = node, label = node.name;
  while (one.children.size === 1 && !one.tensor && !one.first) { one = one.children.values().next().value; label += mark + one.name; }
  return one === node ? node : { ...one, label };
}
function parts(node) {
  const list = folded(node).map(joined).map((one) => ({ one, value: one.bytes }));
  if (node.tensor && node.children.size) list.push({ one: { ...node, children: new Map(), name: "(itself)", label: undefined, bytes: node.tensor.bytes, shares: COLOURS[colours](node.tensor) }, value: node.tensor.bytes });
  // What all names begin with is cut first.
  const names = list.map(({ one }) => one.label || one.name);
  let same = names.length > 1 ? names[0].length : 0;
  for (const name of names) while (!name.startsWith(names[0].slice(0, same))) same -= 1;
  for (const part of list) part.same = same;
  return list;
}
const classOf = (name) => name.replace(" ", "-");
function fill(cell, shares) {
  const sorted = Object.entries(shares).sort((a, b) => b[1] - a[1]), every = sorted.reduce((sum, [, bytes]) => sum + bytes, 0) || 1;
  cell.classList.add(classOf(sorted.length ? sorted[0][0] : "rest"));
  let at = 0;
  const stops = sorted.map(([name, bytes]) => { const from = at; at += 100 * bytes / every; return `var(--${classOf(name)}) ${from}% ${at}%`; });
  if (stops.length > 1) cell.style.backgroundImage = `linear-gradient(90deg, ${stops.join(", ")})`;
  return sorted.map(([name, bytes]) => `${LABELS[name] || name} ${(100 * bytes / every).toFixed(0)}%`).join(", ");
}
function paint() {
  const map = $("map"), list = parts(shown);
  for (const entry of list) {
    if (entry.one.children.size && list.length * Math.min(entry.one.children.size, PARTS) <= 4 * INNER) { entry.children = parts(entry.one); entry.value = 0; }
  }
  const tree = d3.hierarchy({ children: list }).sum((one) => one.value || 0);
  d3.treemap().size([map.clientWidth, map.clientHeight]).round(true).paddingTop((one) => one.depth === 1 && one.children ? 20 : 0)(tree);
  map.replaceChildren();
  for (const leaf of tree.descendants()) {
    const { one, same } = leaf.data, width = leaf.x1 - leaf.x0, height = leaf.y1 - leaf.y0;
    if (one === undefined || width < 2 || height < 2) continue;
    const text = `${one.label || one.name || "(empty)"}${one.children.size && !one.first ? mark : ""}`;
    const cell = make("button", { type: "button", tabindex: "-1" }), what = `${size(leaf.value)}, ${fill(cell, one.shares)}`;
    cell.title = `${full(one) || text}\n${what}`;
    cell.setAttribute("aria-label", `${text}, ${what}`);
    const room = Math.floor((width - 12) / 7.5);
    if (room > 2 && height > 16) {
      const long = `${text} ${size(leaf.value)}`, last = one.first ? `…${one.last.slice(same)}` : text.slice(same), end = one.first ? one.first.slice(same) + last : last;
      cell.append(make("span", {}, [long, text, end, ended(last, room)].find((one) => one.length <= room) || ""));
    }
    cell.style.left = `${leaf.x0}px`; cell.style.top = `${leaf.y0}px`; cell.style.width = `${width}px`; cell.style.height = `${height}px`;
    cell.addEventListener("click", () => zoom(one, true));
    map.append(cell);
  }
  if (map.firstChild) map.firstChild.tabIndex = 0;
}
$("map").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const cells = [...$("map").children], at = cells.indexOf(document.activeElement), next = cells[at + step];
  if (next) { cells[at].tabIndex = -1; next.tabIndex = 0; next.focus(); event.preventDefault(); }
});
function zoom(node, move) {
  if (node.tensor && !node.children.size) { if (byName.has(node.tensor.name)) select(node.tensor.name); return; }
  shown = node;
  const crumbs = $("crumbs"), path = [];
  for (let one = node.parent; one; one = one.parent) path.unshift(one);
  crumbs.replaceChildren();
  for (const one of path) crumbs.append(make("button", { type: "button", onclick: () => zoom(one, true) }, one.name), " / ");
  crumbs.append(`${node.name} ${size(node.bytes)}, ${plural(node.count, "tensor")}${leftOut && node === root ? `; without the object graph (${size(leftOut)})` : ""}`);
  paint();
  if (move && $("map").firstChild) $("map").firstChild.focus();
}
function legend() {
  const names = [...(colours === "role" ? ROLES : [...CHANGES, "same"])].filter((name) => root.shares[name]);
  $("colours").replaceChildren(...names.map((name) => make("span", { class: "share" }, make("span", { class: `key ${classOf(name)}`, "aria-hidden": "true" }), LABELS[name] || name)));
  if (comparison && !data.grouped) {
    const other = colours === "role" ? "change" : "role";
    $("colours").append(make("button", { type: "button", onclick: () => { colours = other; restart(); } }, `Colour by ${other}`));
  }
}
function restart() {
  grow();
  $("s-map").hidden = !root.bytes;
  if (root.bytes) { zoom(beginning()); legend(); }
}

// ---- one tensor
function select(name) {
  const one = byName.get(name), stats = one.stats, back = document.activeElement;
  selected = name;
  const known = [["dtype", one.dtype], ["shape", shape(one.shape)], ["elements", count(elements(one))], ["bytes", size(one.bytes)], ["role", one.role]];
  // Of another format these are those of the converted copy.
  if (!isConverted) known.push(["stored", size(one.stored)], ["data file", one.shard === null ? "several" : String(one.shard)]);
  if (one.key !== undefined) known.push(["stored name", one.key]);
  if (changeOf.has(name)) known.push(["change", changeOf.get(name)]);
  if (stats) {
    known.push(["measured", one.sampled ? `a sample: ${count(stats.count)} of ${plural(elements(one), "element")}` : "all elements"]);
    for (const [text, field] of [["min", "low"], ["max", "high"], ["mean", "mean"], ["std", "deviation"]]) known.push([text, figure(one, field)]);
    for (const [text, field] of [["zero", "zeros"], ["infinite", "infinite"], ["NaN", "nans"]]) if (stats[field]) known.push([text, count(stats[field])]);
  } else if (!one.error) known.push(["measured", ["string", "variant", "resource"].includes(one.dtype) ? "not a number" : "not read"]);
  const rows = known.map(([text, value]) => make("tr", {}, make("th", { scope: "row" }, text), make("td", {}, value)));
  $("h-detail").textContent = name || "(empty)";
  $("facts").replaceChildren(make("table", {}, make("tbody", {}, ...rows)));
  for (const text of [...(one.warnings || []), ...(one.error ? [one.error] : [])]) $("facts").append(make("p", { class: "warn" }, text));
  if (one.histogram) $("facts").append(histogram(one.histogram, elements(one)));
  if (one.slices) $("facts").append(slices(one));
  $("detail").hidden = false;
  location.replace(`#${encodeURIComponent(name)}`);
  all.paint(false);
  if (changes) changes.paint(false);
  if (document.activeElement !== back && back.isConnected) back.focus();
}
function close() {
  if ($("detail").hidden) return;
  const back = selected, inside = $("detail").contains(document.activeElement);
  $("detail").hidden = true; selected = null;
  all.paint(false);
  if (changes) changes.paint(false);
  if (inside) ([...document.querySelectorAll("#rows button")].find((one) => one.getAttribute("aria-label") === back) || $("filter")).focus();
}
$("close").addEventListener("click", close);
addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
function histogram(found, every) {
  const width = 320, height = 130, most = Math.max(...found.counts), step = width / found.counts.length;
  const text = `histogram of ${found.elements < every ? `${count(found.elements)} of ${count(every)}` : count(every)} elements, from ${number(found.low)} to ${number(found.high)}`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height + 18}`, role: "img", "aria-label": text, width });
  found.counts.forEach((one, at) => {
    const tall = one ? Math.max(1, height * one / most) : 0;
    const bar = draw("rect", { class: "bar", x: at * step + 0.5, y: height - tall, width: step - 1, height: tall });
    bar.append(draw("title", {}, count(one)));
    svg.append(bar);
  });
  svg.append(draw("text", { x: 0, y: height + 14 }, number(found.low)), draw("text", { x: width, y: height + 14, "text-anchor": "end" }, number(found.high)));
  return make("figure", {}, svg, make("figcaption", {}, text));
}
function slices(one) {
  const dims = one.shape.length ? one.shape : [1], rowsOf = dims.length > 1 ? dims[0] : 1, columns = dims.length > 1 ? dims[1] : dims[0];
  const width = 320, height = Math.min(200, Math.max(40, 320 * rowsOf / Math.max(columns, 1)));
  const text = `${plural(one.slice_count, "slice")}${dims.length > 2 ? ", by the first two dimensions" : ""}, coloured by data file`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text, width });
  for (const [start, lengths, shard] of one.slices) {
    const [y, x] = dims.length > 1 ? start : [0, start[0] || 0], [tall, wide] = dims.length > 1 ? lengths : [1, lengths[0] || 1];
    const box = draw("rect", { class: "slice", x: width * x / columns, y: height * y / rowsOf, width: width * wide / columns, height: height * tall / rowsOf, fill: `hsl(${shard * 137.5 % 360} 50% 45%)` });
    box.append(draw("title", {}, `file ${shard}: from ${shape(start)}, ${shape(lengths)}`));
    svg.append(box);
  }
  return make("figure", {}, svg, make("figcaption", {}, text + (one.slices.length < one.slice_count ? `; the first ${count(one.slices.length)} are shown` : "")));
}

const probe = make("span", { class: "probe" }, "0".repeat(40));
document.body.append(probe);
character = probe.getBoundingClientRect().width / 40 || character;
probe.remove();
restart();
filter();
let waiting = 0;
addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => { if (root.bytes) paint(); all.paint(false); if (changes) changes.paint(false); }); });
const wanted = decodeURIComponent(location.hash.slice(1));
if (byName.has(wanted)) select(wanted);
})();
