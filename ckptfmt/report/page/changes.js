// SPDX-License-Identifier: Apache-2.0
// What became of the tensors since another checkpoint.
// Ratios of the norm of a change to the norm, in five steps of equally many: they differ also where everything changed.
const STEPS = 5;
function boundsOf(values) {
  const ratios = values.map(key).filter((one) => one > 0).sort((a, b) => a - b);
  return Array.from({ length: STEPS - 1 }, (_, at) => ratios[Math.floor((at + 1) * ratios.length / STEPS)]);
}
const stepOf = (ratio, of) => `step-${of.filter((one) => ratio >= one).length}`;
const bounds = boundsOf(comparison ? comparison.rows.map((one) => one.ratio) : []);
let changes = null, kind = null;
if (comparison) {
  $("s-comparison").hidden = false;
  const kinds = [...CHANGES, "same"].filter((name) => comparison.counts[name]);
  $("compared").textContent = kinds.map((name) => `${count(comparison.counts[name])} ${name}`).join(", ") || "no tensors";
  if (comparison.unread) $("compared").append(` (${count(comparison.unread)} not read: equal stored checksums)`);
  const cut = CHANGES.reduce((every, name) => every + (comparison.counts[name] || 0), 0) - comparison.rows.length;
  if (cut) $("compared").append(`; ${count(cut)} of these are not listed`);
  const say = (text) => $("noticed").append(make("li", { class: "warn" }, text));
  const LISTED = 12;
  if (comparison.still.length) say(`Did not move, while others did: ${comparison.still.slice(0, LISTED).join(", ")}${comparison.still.length > LISTED ? ` and ${count(comparison.still.length - LISTED)} more` : ""}`);
  for (const [a, b] of comparison.exchanged.slice(0, LISTED)) say(`Exchanged: ${a} and ${b}`);
  if (comparison.exchanged.length > LISTED) say(`and ${count(comparison.exchanged.length - LISTED)} more pairs exchanged`);
  if (comparison.graph) $("noticed").append(make("li", {}, comparison.graph));
  const heads = ["name", "before", "after"];
  if (comparison.values.length) $("metadata").append(folding("changed value of the state", comparison.values.length, plain(heads, comparison.values)));
  if (comparison.metadata.length) $("metadata").append(folding("changed metadata value", comparison.metadata.length, plain(heads, comparison.metadata)));
  for (const name of ["all", ...kinds.filter((one) => one !== "same")]) {
    $("kinds").append(button(name, (event) => {
      kind = name === "all" ? null : name;
      [...$("kinds").children].forEach((one) => one.setAttribute("aria-pressed", String(one === event.currentTarget)));
      showChanges();
    }, { "aria-pressed": String(name === "all") }));
  }
  const kindOf = (side) => side ? `${side[0]} ${shape(side[1])}` : "";
  const what = (one) => one.change === "retyped" ? `${kindOf(one.before)} → ${kindOf(one.after)}` : one.error ? one.error
    : one.old !== undefined ? `${one.old} → ${one.new}`
    : one.nans && (one.nans[0] || one.nans[1]) ? `NaN: ${count(one.nans[0])} before, ${count(one.nans[1])} after`
    : one.infinite && (one.infinite[0] || one.infinite[1]) ? `infinite: ${count(one.infinite[0])} before, ${count(one.infinite[1])} after` : kindOf(one.after || one.before);
  // New NaN and infinities come first: a ratio is of finite elements. Weights come before what an optimizer keeps of them, which moves farther.
  const broke = (one) => [one.nans, one.infinite].some((both) => both && both[1] > both[0]);
  const after = (one) => 10 * CHANGES.indexOf(one.change) + (broke(one) ? -5 : Math.max(ROLES.indexOf(one.role), 0));
  [...comparison.rows].sort((a, b) => after(a) - after(b) || (key(b.ratio) ?? -1) - (key(a.ratio) ?? -1)).forEach((one, rank) => { one.rank = rank; });
  const numberIn = (title, field, width = 96) => ({ title, width, right: 1, down: -1, key: (one) => key(one[field]), cell: (one) => one[field] === null || one[field] === undefined ? "" : number(one[field], 4) });
  changes = table($("changes"), [
    { title: "name", key: (one) => one.rank },
    { ...numberIn("change / norm", "ratio", 132), picture: (one) => key(one.ratio) > 0 ? patch(stepOf(key(one.ratio), bounds)) : null },
    { title: "change", width: 100, key: (one) => one.rank, cell: (one) => one.change },
    { title: "what", width: 250, key: what, cell: what },
    numberIn("norm of change", "norm_change", 140), numberIn("norm before", "norm", 118),
    { title: "elements", width: 110, right: 1, down: -1, key: (one) => one.elements, cell: (one) => typeof one.elements === "number" ? count(one.elements) : "" },
    numberIn("largest", "largest"),
    { title: "role", width: 88, key: (one) => one.role, cell: (one) => one.role || "" },
  ], comparison.rows, [2, 1], opener);
  listeners.push(showChanges);
}
function showChanges() { changes.show((one) => wanted(one) && (kind === null || one.change === kind)); }
