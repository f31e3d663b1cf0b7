// SPDX-License-Identifier: Apache-2.0
// All tensors, and the filter that also acts on the layers, the changes and the map.
const figure = (one, field) => one.stats ? `${one.sampled ? "~" : ""}${one.dtype.startsWith("complex") ? "|x| " : ""}${short(one.stats[field])}` : "";
const roleOf = (one) => one.role || Object.keys(one.roles).map((role) => LABELS[role]).join(", ");
const opener = (one) => byName.has(one.name) ? () => select(one.name) : null;
const tensorTable = table($("rows"), [
  { title: "name", key: (one) => one.rank },
  ...(data.grouped ? [
    { title: "tensors", width: 90, right: 1, key: (one) => one.tensors, cell: (one) => count(one.tensors) },
    { title: "elements", width: 140, right: 1, key: elements, cell: (one) => count(elements(one)) }] : [
    { title: "dtype", width: 80, fit: 1, key: (one) => one.dtype, cell: (one) => one.dtype },
    { title: "shape", width: 130, right: 1, key: elements, cell: (one) => shape(one.shape) }]),
  { title: "bytes", width: 86, right: 1, key: (one) => one.bytes, cell: (one) => size(one.bytes) },
  { title: "role", width: data.grouped ? 180 : 84, key: roleOf, cell: roleOf },
  ...(data.grouped || isConverted ? [] : [
    { title: "file", width: 76, right: 1, key: (one) => one.shard === null ? -1 : one.shard, cell: (one) => one.shard === null ? plural(one.slice_count, "slice") : String(one.shard) }]),
  ...(data.grouped ? [] : [["norm", "norm"], ["mean", "mean"], ["std", "deviation"], ["min", "low"], ["max", "high"]].map(([title, field]) => (
    { title, width: 94, fit: 1, right: 1, down: -1, key: (one) => one.stats ? key(one.stats[field]) : null, cell: (one) => figure(one, field) }))),
], tensors, [0, 1], opener);
if (data.grouped) $("grouped").textContent = `${plural(data.count, "tensor")} are too many for one page: each row is a group of them, ${plural(tensors.length, "row")} in all.`;

// ---- filter
function matcher(text) {
  if (!text) return () => true;
  if (text.length > 2 && text.startsWith("/") && text.endsWith("/")) { const found = new RegExp(text.slice(1, -1)); return (name) => found.test(name); }
  if (!/[*?]/.test(text)) return (name) => name.includes(text);
  const glob = text.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".");
  const found = new RegExp(`^${glob}$`, "s");
  return (name) => found.test(name);
}
const listeners = [];
let wanted = () => true;
function filter() {
  let matches;
  try { matches = matcher($("filter").value); $("filter").removeAttribute("aria-invalid"); } catch (error) { $("filter").setAttribute("aria-invalid", "true"); $("count").textContent = "not a regular expression"; return; }
  wanted = (one) => [one.name, one.key, parameterOf(one)].some((name) => name !== undefined && matches(name));
  $("count").textContent = `${count(tensorTable.show(wanted))} of ${plural(tensors.length, data.grouped ? "group" : "tensor")}`;
  listeners.forEach((listener) => listener());
}
$("filter").addEventListener("input", filter);
function filterBy(text) { $("filter").value = text; filter(); }

// ---- files of what is shown
function offer(name, type, text) {
  const link = make("a", { download: name, href: URL.createObjectURL(new Blob([text], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
const fileName = (end) => `${data.path.split("/").pop()}.${end}`;
const COLUMNS = ["name", "dtype", "shape", "bytes", "role", "elements", "tensors", "norm", "mean", "deviation", "low", "high", "zeros", "nans", "infinite", "change", "ratio"];
function rowsShown() {
  return tensorTable.rows().map((one) => {
    const change = changeOf.get(one.name), all = { ...one.stats, ...one, role: roleOf(one), elements: elements(one), ...(comparison && !data.grouped ? { change: changeText(one.name), ratio: change && change.ratio } : {}) };
    return Object.fromEntries(COLUMNS.filter((name) => all[name] !== undefined).map((name) => [name, all[name]]));
  });
}
$("csv").addEventListener("click", () => {
  const quoted = (value) => { const text = value === undefined || value === null ? "" : Array.isArray(value) ? value.join("x") : String(value); return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };
  offer(fileName("csv"), "text/csv", [COLUMNS, ...rowsShown().map((one) => COLUMNS.map((name) => one[name]))].map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n");
});
$("json").addEventListener("click", () => offer(fileName("json"), "application/json", JSON.stringify({ ...data, tensors: tensorTable.rows() })));
