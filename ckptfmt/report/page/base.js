// SPDX-License-Identifier: Apache-2.0
// The page of a report: its data, elements, numbers as text. All text of the checkpoint enters the
// page by textContent.
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const { tensors, health, about, layers } = data;
const comparison = data.comparison || null;
const isConverted = data.format !== "tensorflow";
const numeric = new Intl.Collator("en", { numeric: true }).compare;
[...tensors].sort((a, b) => numeric(a.name, b.name)).forEach((one, at) => { one.rank = at; });
const byName = new Map(data.grouped ? [] : tensors.map((one) => [one.name, one]));
const changeOf = new Map(comparison ? comparison.rows.map((one) => [one.name, one]) : []);
// Object graphs are compared as graphs, without a row.
const changeText = (name) => changeOf.has(name) ? changeOf.get(name).change : name === GRAPH && comparison.graph ? "changed" : "same";
const ROLES = ["weight", "optimizer", "other", "unknown"];
const CHANGES = ["unreadable", "removed", "added", "retyped", "changed", "not compared"];
const LABELS = { weight: "weights", optimizer: "optimizer", other: "other", unknown: "weights or optimizer" };
const GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH";

// ---- elements
function give(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "onclick") node.addEventListener("click", value);
    else if (value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children.filter((one) => one !== null && one !== undefined));
  return node;
}
const make = (tag, attributes, ...children) => give(document.createElement(tag), attributes, children);
const SVG = "http://www.w3.org/2000/svg";
const draw = (tag, attributes, ...children) => give(document.createElementNS(SVG, tag), attributes, children);
const titled = (node, text) => { node.append(draw("title", {}, text)); return node; };
const button = (text, onclick, attributes) => make("button", { type: "button", onclick, ...attributes }, text);
const patch = (name) => make("span", { class: `key ${name}`, "aria-hidden": "true" });
// A table of texts; the first column names the row.
const plain = (heads, rows) => make("table", {},
  heads && make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)))),
  make("tbody", {}, ...rows.map(([name, ...cells]) =>
    make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((text) => make("td", {}, text === null ? "-" : text))))));
// Few rows are shown, of many how many they are.
function folding(what, number, node) {
  if (number <= 6) return node;
  return make("details", {}, make("summary", {}, plural(number, what)), node);
}

// ---- numbers
function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (bytes >= 1023.95 && at < units.length - 1) { bytes /= 1024; at += 1; }
  return at ? `${bytes.toFixed(1)} ${units[at]}` : `${bytes} B`;
}
const count = (value) => value.toLocaleString("en");
const plural = (value, what) => `${count(value)} ${what}${value === 1 ? "" : "s"}`;
const percent = (part, all) => `${(100 * part / all).toFixed(part && part / all < 0.1 ? 1 : 0)}%`;
const shape = (dims) => `[${dims.join(", ")}]`;
// Integers are text, so that all of their digits are shown.
function number(value, digits = 7) {
  if (value === null || value === undefined) return "-";
  if (typeof value === "string") return value.replace("Infinity", "inf");
  const tall = Math.abs(value);
  if (tall === Infinity) return value < 0 ? "-inf" : "inf";
  if (Number.isInteger(value) && tall < 1e9) return String(value);
  if (tall < 1e-3 || tall >= 1e9) return value.toExponential(Math.min(digits, 5) - 1).replace(/\.?0+e/, "e");
  // No digit of the whole part is rounded.
  return Number(value.toPrecision(Math.max(digits, Math.trunc(tall).toString().length + 1))).toString();
}
// In a column: the panel of the tensor has all digits.
const short = (value) => typeof value === "string" && value.length > 12 ? number(Number(value), 4) : number(value, 4);
const key = (value) => value === null || value === undefined ? null : Number(value);
const elements = (one) => one.elements !== undefined ? one.elements : one.shape.reduce((all, dim) => all * dim, 1);
// The parameter of a moment whose own name does not have it.
const parameterOf = (one) => one.parameter === undefined || one.name.includes(one.parameter) ? undefined : one.parameter;
// The end of a name tells it from others.
const ended = (text, room) => text.length <= room ? text : `…${text.slice(text.length - Math.max(room - 1, 4))}`;
const classOf = (name) => name.replace(" ", "-");

// ---- axes
const tickText = (value) => Math.abs(value) >= 1e5 ? value.toExponential(2).replace(/\.?0+e/, "e") : number(value, 3);
// A scale from values to a length; of many powers of ten it is logarithmic.
function logarithmic(values, length) {
  const some = values.filter((one) => one > 0 && Number.isFinite(one));
  if (!some.length) return null;
  let low = Math.log10(Math.min(...some)), high = Math.log10(Math.max(...some));
  const pad = 0.05 * (high - low) || 0.05, isOne = high === low;
  low -= pad; high += pad;
  const ticks = [];
  const step = Math.ceil((high - low) / 4);
  for (let at = Math.ceil(low); at <= high; at += step) ticks.push(10 ** at);
  if (ticks.length < 2) ticks.splice(0, 2, ...[low + pad, high - pad].slice(isOne).map((one) => 10 ** one));
  return { at: (value) => length * (Math.log10(value) - low) / (high - low), ticks };
}
// A scale that is linear around 0 and logarithmic beyond `unit`.
function symmetric(values, unit, length) {
  const bend = (value) => Math.sign(value) * Math.log10(1 + Math.abs(value) / unit);
  const low = Math.min(0, ...values.map(bend)), high = Math.max(0, ...values.map(bend)), span = high - low || 1;
  const ticks = [0];
  for (const side of [-1, 1]) {
    const end = side < 0 ? -low : high, step = Math.max(1, Math.ceil(end / 3));
    for (let power = Math.ceil(Math.log10(unit)); bend(10 ** power) <= end; power += step) ticks.push(side * 10 ** power);
  }
  return { at: (value) => length * (bend(value) - low) / span, ticks };
}

// ---- theme
function label() {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
  $("theme").textContent = dark ? "Light" : "Dark";
  $("theme").setAttribute("aria-pressed", String(dark));
  return dark;
}
$("theme").addEventListener("click", () => { document.documentElement.dataset.theme = label() ? "light" : "dark"; label(); });
label();
