// SPDX-License-Identifier: Apache-2.0
// The map: a tree of modules by bytes, drawn two levels at a time.
// Names are split at slashes; at dots, if none has a slash.
const mark = tensors.some((one) => one.name !== GRAPH && one.name.includes("/")) ? "/" : ".";
const empty = (name, parent) => ({ name, children: new Map(), bytes: 0, count: 0, damaged: 0, tensor: null, parent, shares: {} });
const root = empty("all", null);
const STEP = /^step-/;
function changed(one) {
  const found = changeOf.get(one.name);
  if (!found) return "same";
  return found.change === "changed" ? found.ratio === null || found.ratio === undefined ? "changed" : stepOf(key(found.ratio), bounds) : found.change;
}
const COLOURS = { role: (one) => one.roles || { [one.role]: one.bytes }, change: (one) => ({ [changed(one)]: one.bytes }) };
let colours = "role", shown = root, leftOut = 0;
// A moment is drawn at its parameter: its own number says nothing.
function placeOf(one) {
  if (parameterOf(one) === undefined) return one.name;
  const names = one.name.split(mark);
  return [names[0], one.parameter, names[names.length - 1]].join(mark);
}
function grow() {
  Object.assign(root, empty("all", null)); leftOut = 0;
  for (const one of tensors.filter(wanted)) {
    if (one.name === GRAPH) { leftOut = one.bytes; continue; }
    const parts = placeOf(one).split(mark), shares = Object.entries(COLOURS[colours](one));
    const add = (node) => { node.bytes += one.bytes; node.count += one.tensors || 1; node.damaged += Boolean(one.error); for (const [name, bytes] of shares) node.shares[name] = (node.shares[name] || 0) + bytes; };
    let node = root;
    add(root);
    for (const part of one.tensors && !parts[parts.length - 1] ? parts.slice(0, -1) : parts) {
      if (!node.children.has(part)) node.children.set(part, empty(part, node));
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
    const group = { ...empty(`${some[0].name} … ${some[some.length - 1].name}`, node), first: some[0].name, last: some[some.length - 1].name, children: new Map(some.map((one) => [one.name, one])) };
    for (const one of some) { group.bytes += one.bytes; group.count += one.count; group.damaged += one.damaged; for (const [name, bytes] of Object.entries(one.shares)) group.shares[name] = (group.shares[name] || 0) + bytes; }
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
function fill(cell, shares) {
  const sorted = Object.entries(shares).sort((a, b) => b[1] - a[1]), every = sorted.reduce((sum, [, bytes]) => sum + bytes, 0) || 1;
  cell.classList.add(classOf(sorted.length ? sorted[0][0] : "rest"));
  let at = 0;
  const stops = sorted.map(([name, bytes]) => { const from = at; at += 100 * bytes / every; return `var(--${classOf(name)}) ${from}% ${at}%`; });
  if (stops.length > 1 && !sorted.some(([name]) => STEP.test(name))) cell.style.backgroundImage = `linear-gradient(90deg, ${stops.join(", ")})`;
  return sorted.map(([name, bytes]) => `${titleOf(name)} ${(100 * bytes / every).toFixed(0)}%`).join(", ");
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
    const cell = make("button", { type: "button", tabindex: "-1" }), what = `${size(leaf.value)}, ${fill(cell, one.shares)}${one.damaged ? `, ${count(one.damaged)} damaged` : ""}`;
    if (one.damaged) cell.classList.add("damaged");
    cell.title = `${full(one) || text}\n${what}`;
    cell.setAttribute("aria-label", `${text}, ${what}`);
    const room = Math.floor((width - 12) / 7.5) - (one.damaged ? 2 : 0);
    if (room > 2 && height > 16) {
      const long = `${text} ${size(leaf.value)}`, last = one.first ? `…${one.last.slice(same)}` : text.slice(same), end = one.first ? one.first.slice(same) + last : last;
      cell.append(make("span", {}, (one.damaged ? "! " : "") + ([long, text, end, ended(last, room)].find((one) => one.length <= room) || "")));
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
const titleOf = (name) => STEP.test(name) ? between(Number(name.slice(5))) : LABELS[name] || name;
// What a step of change / norm means.
function between(step) {
  const [low, high] = [bounds[step - 1], bounds[step]].map((one) => one === undefined ? undefined : number(one, 2));
  if (low === undefined && high === undefined) return "changed";
  return low === undefined ? `changed, below ${high}` : high === undefined ? `changed, ${low} and more` : `changed, ${low} to ${high}`;
}
function legend() {
  const steps = Array.from({ length: STEPS }, (_, at) => `step-${at}`);
  const names = [...(colours === "role" ? ROLES : [...CHANGES, "same", ...steps])].filter((name) => root.shares[name]);
  $("colours").replaceChildren(...names.map((name) => make("span", { class: "share" }, patch(classOf(name)), titleOf(name))));
  if (comparison && !data.grouped) {
    const other = colours === "role" ? "change" : "role";
    $("colours").append(button(`Colour by ${other}`, () => { colours = other; restart(); }));
  }
}
function restart() {
  grow();
  $("s-map").hidden = !root.bytes;
  if (root.bytes) { zoom(beginning()); legend(); }
}
listeners.push(restart);

