// SPDX-License-Identifier: Apache-2.0
// The panel of one tensor.
function select(name) {
  const one = byName.get(name), stats = one.stats, back = document.activeElement;
  selected = name;
  const known = [["dtype", one.dtype], ["shape", shape(one.shape)], ["elements", count(elements(one))], ["bytes", size(one.bytes)], ["role", one.role]];
  // Of another format these are those of the converted copy.
  if (!isConverted) known.push(["stored", size(one.stored)], ["data file", one.shard === null ? "several" : String(one.shard)]);
  if (one.key !== undefined) known.push(["stored name", one.key]);
  if (one.parameter !== undefined) known.push(["parameter", one.parameter]);
  const change = changeOf.get(name);
  if (comparison) known.push(["change", changeText(name)]);
  if (change && change.old !== undefined) known.push(["before", change.old], ["after", change.new]);
  if (change && change.ratio !== null && change.ratio !== undefined) known.push(["norm of change / norm before", `${number(key(change.norm_change))} / ${number(key(change.norm))} = ${number(key(change.ratio), 4)}`]);
  if (stats) {
    known.push(["measured", one.sampled ? `a sample: ${count(stats.count)} of ${plural(elements(one), "element")}` : "all elements"]);
    for (const [text, field] of [["norm", "norm"], ["min", "low"], ["max", "high"], ["mean", "mean"], ["std", "deviation"]]) known.push([text, exact(one, field)]);
    for (const [text, field] of [["zero", "zeros"], ["infinite", "infinite"], ["NaN", "nans"]]) if (stats[field]) known.push([text, `${count(stats[field])} (${percent(stats[field], stats.count)})`]);
    if (one.percentiles) known.push(["percentiles 1, 5, 25, 50, 75, 95, 99", one.percentiles.map((value) => number(value, 3)).join(", ")]);
  } else if (!one.error) known.push(["measured", ["string", "variant", "resource"].includes(one.dtype) ? "not a number" : "not read"]);
  const rows = known.map(([text, value]) => make("tr", {}, make("th", { scope: "row" }, text), make("td", {}, value)));
  $("h-detail").textContent = name || "(empty)";
  $("copy").textContent = "Copy name";
  $("facts").replaceChildren(make("table", {}, make("tbody", {}, ...rows)));
  for (const text of [...(one.warnings || []), ...(one.error ? [one.error] : [])]) $("facts").append(make("p", { class: "warn" }, text));
  if (change && change.histogram) $("facts").append(histogram(change.histogram));
  else if (one.histogram) $("facts").append(histogram(one.histogram, elements(one)));
  for (const what of ["nans", "zeros"]) if (one.places && one.places[what]) $("facts").append(places(one, what));
  if (one.slices) $("facts").append(slices(one));
  $("detail").hidden = false;
  document.body.classList.add("opened");
  location.replace(`#${encodeURIComponent(name)}`);
  repaint();
  if (document.activeElement !== back && back.isConnected) back.focus();
}
function close() {
  if ($("detail").hidden) return;
  const back = selected, inside = $("detail").contains(document.activeElement);
  $("detail").hidden = true; selected = null;
  document.body.classList.remove("opened");
  repaint();
  if (inside) ([...document.querySelectorAll("#rows button")].find((one) => one.getAttribute("aria-label") === back) || $("filter")).focus();
}
$("close").addEventListener("click", close);
// Of all digits; the table has few.
const exact = (one, field) => `${one.sampled ? "~" : ""}${one.dtype.startsWith("complex") ? "|x| " : ""}${number(one.stats[field])}`;
$("copy").addEventListener("click", async () => {
  const said = (text) => { $("copy").textContent = text; };
  try { await navigator.clipboard.writeText(selected); said("Copied"); } catch (error) { said(`Not copied: ${error.message}`); }
});
addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
// Bars from low to high; of two checkpoints the outline is before, the bars are after.
function histogram(found, every) {
  const width = 320, height = 130, series = [found.after, found.before].filter(Boolean), most = Math.max(...series.flat(), 1), step = width / found.after.length;
  const shown = found.after.reduce((all, one) => all + one, 0), sign = found.negative ? "-" : "", low = `${sign}${number(found.low)}`, high = `${sign}${number(found.high)}`;
  const of = every === undefined ? "sampled elements, before (outline) and after" : `${shown < every ? `${count(shown)} of ${count(every)}` : count(every)} elements`;
  const text = `histogram of ${of}, from ${low} to ${high}${found.scale === "log" ? ", logarithmic" : ""}${found.zeros ? `, without ${plural(found.zeros, "zero")}` : ""}`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height + 18}`, role: "img", "aria-label": text, width });
  const tall = (one) => one ? Math.max(1, height * one / most) : 0;
  found.after.forEach((one, at) => svg.append(titled(draw("rect", { class: "bar", x: at * step + 0.5, y: height - tall(one), width: step - 1, height: tall(one) }), count(one))));
  if (found.before) svg.append(draw("path", { class: "outline", d: `M0 ${height}${found.before.map((one, at) => `L${at * step} ${height - tall(one)}L${(at + 1) * step} ${height - tall(one)}`).join("")}L${width} ${height}` }));
  svg.append(draw("text", { x: 0, y: height + 14 }, low), draw("text", { x: width, y: height + 14, "text-anchor": "end" }, high));
  return make("figure", {}, svg, make("figcaption", {}, text));
}
// Where NaN or zeros are: the darker, the more of them.
function places(one, what) {
  const grid = one.places[what], rows = grid.length, columns = grid[0].length, most = Math.max(...grid.flat(), 1);
  const width = 320, height = Math.min(160, Math.max(14, 20 * rows)), text = `where ${what === "nans" ? "NaN and infinity" : "zeros"} are: first dimension from the top${one.shape.length > 2 ? ", all others" : one.shape.length > 1 ? ", the other" : ""} from the left`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text, width });
  grid.forEach((line, y) => line.forEach((number, x) => svg.append(titled(draw("rect", { class: what, x: width * x / columns, y: height * y / rows, width: width / columns, height: height / rows, "fill-opacity": number ? 0.25 + 0.75 * number / most : 0 }), count(number)))));
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

