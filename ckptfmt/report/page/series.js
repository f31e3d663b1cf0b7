// SPDX-License-Identifier: Apache-2.0
// Layers over the steps of several checkpoints.
const series = data.series || null;
const MEASURES = { norm: "norm", ratio: "change / norm", zeros: "part of zeros", bad: "NaN and infinite" };
let seriesTable = null, measure = "norm", seriesRole = series && (ROLES.find((role) => series.layers.some((one) => one.role === role)) || null), seriesShown = [];
const seriesPoints = (one, x, y) => {
  // A gap ends a line.
  let text = "", drawn = false;
  one[measure].forEach((value, at) => {
    const height = value === null ? null : y(key(value));
    if (height === null || !Number.isFinite(height)) { drawn = false; return; }
    text += `${drawn ? "L" : "M"}${x(at).toFixed(1)} ${height.toFixed(1)}`;
    if (!drawn && (at + 1 >= one[measure].length || one[measure][at + 1] === null)) text += "h.1";
    drawn = true;
  });
  return text;
};
const known = (one) => one[measure].map(key).filter((value) => value !== null && Number.isFinite(value));
// Norms and ratios are compared by their powers of ten, parts and numbers as they are.
function seriesScale(list, length) {
  const values = list.flatMap(known);
  if (measure === "norm" || measure === "ratio") return logarithmic(values, length);
  const most = Math.max(...values, 0) || 1;
  return values.length ? { at: (value) => length * value / most, ticks: [0, most] } : null;
}
const stepText = (one, at) => String(series.axis === "step" ? one.step : at + 1);
function drawSeries() {
  const box = $("series-chart"), width = Math.max(box.clientWidth - LEFT - 12, 100), height = 200, steps = series.steps, scale = seriesScale(seriesShown, height);
  const places = steps.map((one, at) => series.axis === "step" ? one.step : at), low = Math.min(...places), span = Math.max(...places) - low || 1;
  const x = (at) => steps.length < 2 ? width / 2 : width * (places[at] - low) / span;
  const svg = draw("svg", { viewBox: `0 0 ${width + LEFT + 12} ${height + 34}`, width: width + LEFT + 12, height: height + 34, role: "img", "aria-label": `${MEASURES[measure]} of ${plural(seriesShown.length, "layer")} over ${plural(steps.length, "checkpoint")}; the table has the numbers` });
  const group = draw("g", { transform: `translate(${LEFT} 8)` });
  const y = (value) => scale ? height - scale.at(value) : height;
  for (const tick of scale ? scale.ticks : []) group.append(draw("line", { class: "grid", x1: 0, x2: width, y1: y(tick), y2: y(tick) }), draw("text", { x: -5, y: y(tick) + 4, "text-anchor": "end" }, tickText(tick)));
  steps.forEach((one, at) => { if (one.error) group.append(titled(draw("line", { class: "gap", x1: x(at), x2: x(at), y1: 0, y2: height }), `${one.path}\n${one.error}`)); });
  for (const one of scale ? seriesShown : []) group.append(titled(draw("path", { class: `line ${one.role}`, d: seriesPoints(one, x, y) }), one.name));
  const every = Math.max(1, Math.ceil(steps.length / Math.max(2, Math.floor(width / 70))));
  steps.forEach((one, at) => { if (at % every === 0 || at === steps.length - 1 && at % every > every / 2) group.append(draw("text", { x: x(at), y: height + 18, "text-anchor": at ? at === steps.length - 1 ? "end" : "middle" : "start" }, stepText(one, at))); });
  svg.append(group);
  box.replaceChildren(svg);
}
function spark(one) {
  const width = 150, height = 20, scale = seriesScale([one], height - 4), steps = Math.max(one[measure].length - 1, 1);
  const svg = draw("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  if (scale) svg.append(draw("path", { class: `line ${one.role}`, d: seriesPoints(one, (at) => 1 + (width - 2) * at / steps, (value) => height - 2 - scale.at(value)) }));
  return svg;
}
function showSeries() {
  // As the layers: also those of which a tensor is wanted.
  const names = new Set(data.grouped ? [] : tensors.filter((one) => wanted(one) && one.layer !== null).map((one) => `${layers[one.layer].role} ${layers[one.layer].name}`));
  const has = (one) => one.role === seriesRole && (names.has(`${one.role} ${one.name}`) || wanted(one));
  seriesShown = series.layers.filter(has);
  seriesTable.show(has);
  drawSeries();
}
if (series) {
  $("s-series").hidden = false;
  const failed = series.steps.filter((one) => one.error);
  $("series-text").textContent = `${plural(series.steps.length, "checkpoint")}${series.axis === "step" ? ", by step" : ", in the order given"}${series.skipped ? `; ${count(series.skipped)} between them were left out` : ""}. Of large tensors, the same sample was read in each. All else on this page is of ${data.path}.`;
  const partial = series.steps.filter((one) => one.partial).length;
  if (partial) $("series-gaps").append(make("li", {}, `${plural(partial, "checkpoint")} not read in full: the time or bytes that may be read were used up; --full has no limit`));
  const broken = series.layers.map((one) => [one.name, one.bad.findIndex((bad) => bad > 0)]).filter(([, at]) => at >= 0).sort((a, b) => a[1] - b[1]);
  for (const [name, at] of broken.slice(0, 12)) $("series-gaps").append(make("li", { class: "warn" }, `NaN or infinity in ${name}, the first in ${series.steps[at].path}`));
  if (broken.length > 12) $("series-gaps").append(make("li", { class: "warn" }, `and in ${plural(broken.length - 12, "more layer")}`));
  for (const one of failed) $("series-gaps").append(make("li", { class: "warn" }, `${one.path}: ${one.error}`));
  if (series.missing_count) $("series-gaps").append(make("li", {}, make("details", {}, make("summary", {}, `${plural(series.missing_count, "tensor")} not in all of these, or of another shape or dtype, left out`), make("p", {}, series.missing.join(", ") + (series.missing_count > series.missing.length ? ", ..." : "")))));
  const choose = (box, names, labels, current, act) => names.forEach((name) => $(box).append(button(labels[name], (event) => {
    [...$(box).children].forEach((one) => one.setAttribute("aria-pressed", String(one === event.currentTarget)));
    act(name);
    showSeries();
  }, { "aria-pressed": String(name === current) })));
  choose("series-measures", Object.keys(MEASURES), MEASURES, measure, (name) => { measure = name; });
  const roles = ROLES.filter((role) => series.layers.some((one) => one.role === role));
  if (roles.length > 1) choose("series-roles", roles, LABELS, seriesRole, (name) => { seriesRole = name; });
  series.layers.forEach((one, rank) => { one.rank = rank; });
  const ends = (one) => { const values = known(one); return [values[0], values[values.length - 1], values.length ? Math.min(...values) : undefined, values.length ? Math.max(...values) : undefined]; };
  seriesTable = table($("series"), [
    { title: "layer", key: (one) => one.rank },
    { title: "over the steps", width: 170, key: (one) => one.rank, picture: spark, cell: () => "" },
    ...["first", "last", "lowest", "highest"].map((title, at) => ({ title, width: 100, right: 1, down: -1, key: (one) => ends(one)[at], cell: (one) => number(ends(one)[at], 4) })),
  ], series.layers, [0, 1], (one) => () => filterBy(one.name));
  listeners.push(showSeries);
}
