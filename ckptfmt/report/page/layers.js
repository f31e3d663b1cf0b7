// SPDX-License-Identifier: Apache-2.0
// Norm, spread and extremes by layer; of two checkpoints how far each moved.
const layerChange = new Map(comparison ? comparison.layers.map((one) => [`${one.role} ${one.name}`, one]) : []);
const changeOfLayer = (one) => layerChange.get(`${one.role} ${one.name}`);
const ratioOf = (one) => { const change = changeOfLayer(one); return change ? key(change.ratio) : null; };
const layerRoles = ROLES.filter((role) => layers.some((one) => one.role === role && one.count));
let layerRole = layerRoles[0], layersShown = [], layerBounds = [];
const PANEL = 104, LEFT = 62, GAP = 22;
const measured = layers.filter((one) => one.count);
measured.forEach((one, at) => { one.at = at; });
const about_ = (one, field) => `${one.sampled ? "~" : ""}${short(one[field])}`;
function chart() {
  const box = $("layer-chart"), width = Math.max(box.clientWidth - LEFT - 8, 100), list = layersShown, step = width / Math.max(list.length, 1);
  const panels = [], norms = logarithmic(list.map((one) => one.norm), PANEL);
  const numbers = (one) => [one.low, one.high].map(key).filter(Number.isFinite);
  const sizes = list.map((one) => one.rms).filter((one) => one > 0).sort((a, b) => a - b);
  const wide = Math.max(2, Math.min(14, step * 0.6));
  if (norms) panels.push({ title: "norm", scale: norms, mark: (one, x, y) => Number.isFinite(one.norm) && one.norm > 0 ? [draw("circle", { class: `dot ${one.nans || one.infinite ? "bad" : one.role}`, cx: x, cy: y(one.norm), r: Math.max(1.5, Math.min(4, step / 3)) })] : [] });
  if (sizes.length) {
    const scale = symmetric(list.flatMap(numbers), sizes[Math.floor(sizes.length / 2)], PANEL);
    panels.push({ title: "values", scale, mark(one, x, y) {
      const [low, high] = numbers(one);
      if (high === undefined) return [];
      const mean = key(one.mean), top = y(Math.min(mean + one.deviation, high)), bottom = y(Math.max(mean - one.deviation, low));
      return [draw("line", { class: "range", x1: x, x2: x, y1: y(low), y2: y(high) }), draw("rect", { class: one.role, x: x - wide / 2, width: wide, y: top, height: Math.max(bottom - top, 1) })];
    } });
  }
  const ratios = comparison && logarithmic(list.map(ratioOf).filter((one) => one !== null), PANEL);
  if (ratios) panels.push({ title: "change / norm", scale: ratios, mark(one, x, y) {
    const ratio = ratioOf(one);
    if (!(ratio > 0 && Number.isFinite(ratio))) return [];
    return [draw("rect", { class: stepOf(ratio, layerBounds), x: x - wide / 2, width: wide, y: y(ratio), height: Math.max(PANEL - y(ratio), 1) })];
  } });
  const height = panels.length * (PANEL + GAP) + 14;
  const svg = draw("svg", { viewBox: `0 0 ${width + LEFT + 8} ${height}`, width: width + LEFT + 8, height, role: "img", "aria-label": `${panels.map((one) => one.title).join(", ")} of ${plural(list.length, "layer")}, in their order; the table has the numbers` });
  panels.forEach(({ title, scale, mark }, row) => {
    const top = GAP - 6 + row * (PANEL + GAP), y = (value) => PANEL - scale.at(value);
    const group = draw("g", { transform: `translate(${LEFT} ${top})` }, draw("text", { class: "head", x: -LEFT + 2, y: -5 }, title));
    for (const tick of scale.ticks) {
      const at = y(tick);
      if (at >= -1 && at <= PANEL + 1) group.append(draw("line", { class: "grid", x1: 0, x2: width, y1: at, y2: at }), draw("text", { x: -5, y: at + 4, "text-anchor": "end" }, tickText(tick)));
    }
    list.forEach((one, at) => group.append(...mark(one, (at + 0.5) * step, y)));
    svg.append(group);
  });
  list.forEach((one, at) => {
    const area = draw("rect", { class: "area", x: LEFT + at * step, y: 0, width: step, height });
    const change = changeOfLayer(one);
    titled(area, `${one.name}\nnorm ${about_(one, "norm")}, from ${short(one.low)} to ${short(one.high)}${one.nans ? `\n${count(one.nans)} NaN` : ""}${one.infinite ? `\n${count(one.infinite)} infinite` : ""}${change && change.ratio !== null ? `\nchange / norm ${number(key(change.ratio), 3)}` : ""}`);
    area.addEventListener("click", () => filterBy(one.name));
    svg.append(area);
  });
  if (list.length) svg.append(draw("text", { x: LEFT, y: height - 2 }, ended(list[0].name, 40)), draw("text", { x: width + LEFT, y: height - 2, "text-anchor": "end" }, list.length > 1 ? ended(list[list.length - 1].name, 40) : ""));
  box.replaceChildren(svg);
}
const dtypesOf = (one) => Object.entries(one.dtypes).sort((a, b) => b[1] - a[1]).map(([dtype, number]) => number === one.elements ? dtype : `${dtype} ${percent(number, one.elements)}`).join(", ");
const layerColumns = () => [
  { title: "layer", key: (one) => one.at },
  ...(comparison ? [{ title: "change / norm", width: 132, right: 1, down: -1, key: ratioOf, picture: (one) => ratioOf(one) > 0 ? patch(stepOf(ratioOf(one), layerBounds)) : null, cell: (one) => { const change = changeOfLayer(one); return !change ? "" : change.changed ? number(key(change.ratio), 3) : change.unknown ? "not compared" : "same"; } }] : []),
  ...[["norm", "norm"], ["rms", "rms"], ["std", "deviation"], ["min", "low"], ["max", "high"]].map(([title, field]) => ({ title, width: 86, right: 1, down: -1, key: (one) => key(one[field]), cell: (one) => about_(one, field) })),
  { title: "tensors", width: 76, right: 1, down: -1, key: (one) => one.tensors, cell: (one) => count(one.tensors) },
  { title: "elements", width: 104, right: 1, down: -1, key: (one) => one.elements, cell: (one) => count(one.elements) },
  { title: "zero", width: 66, right: 1, down: -1, key: (one) => one.zeros / one.count, cell: (one) => one.zeros ? percent(one.zeros, one.count) : "" },
  { title: "NaN, inf", width: 84, right: 1, down: -1, key: (one) => one.nans + one.infinite, cell: (one) => one.nans + one.infinite ? count(one.nans + one.infinite) : "" },
  { title: "dtypes", width: 150, key: dtypesOf, cell: dtypesOf },
];
let layerTable = null;
function showLayers() {
  const names = new Set(data.grouped ? [] : tensors.filter(wanted).map((one) => one.layer));
  const has = (one) => $("filter").value === "" || names.has(layers.indexOf(one)) || wanted(one);
  layerBounds = boundsOf(measured.filter((one) => one.role === layerRole).map(ratioOf));
  layersShown = measured.filter((one) => one.role === layerRole && has(one));
  layerTable.show((one) => one.role === layerRole && has(one));
  chart();
}
if (measured.length) {
  $("s-layers").hidden = false;
  layerTable = table($("layers"), layerColumns(), measured, comparison ? [1, -1] : [0, 1], (one) => () => filterBy(one.name));
  for (const role of layerRoles.length > 1 ? layerRoles : []) {
    $("layer-roles").append(button(LABELS[role], (event) => {
      layerRole = role;
      [...$("layer-roles").children].forEach((one) => one.setAttribute("aria-pressed", String(one === event.currentTarget)));
      showLayers();
    }, { "aria-pressed": String(role === layerRole) }));
  }
  listeners.push(showLayers);
}
