// SPDX-License-Identifier: Apache-2.0
// What the checkpoint is, and whether it is sound.
$("title").textContent = data.path;
const sum = (at) => data.parts.reduce((all, part) => all + part[at], 0), total = sum(3);
{
  // What tells how far a training is, of a state, metadata or a tensor.
  const leads = /(^|[./])_?(steps?|global_step|iter|iterations?|(last_)?epoch|loss|lr|learning_rate)$/i;
  // An optimizer has a step for each parameter.
  const ends = new Set(), isFirst = (name) => { const end = name.split(/[./]/).pop(), found = !ends.has(end); ends.add(end); return found; };
  const scalars = about.values.length ? [] : tensors.filter((one) => one.stats && one.shape.length === 0 && leads.test(one.name) && isFirst(one.name)).map((one) => [one.name, number(one.stats.mean)]);
  const first = [...about.values, ...about.metadata, ...scalars].filter(([name, text]) => leads.test(name) && text.length <= 40).slice(0, 8);
  const left = (list) => list.filter((one) => !first.includes(one)), others = left(about.values), metadata = left(about.metadata);
  const weights = (data.parts.find(([role]) => role === "weight") || [0, 0, 0])[2];
  const facts = [
    ...(about.framework ? [["framework", about.framework]] : []), ...first, ["tensors", count(data.count)],
    ["elements", count(sum(2))], ...(weights && weights !== sum(2) ? [["of weights", count(weights)]] : []), ["bytes of tensors", size(total)],
    ...(isConverted ? [["format", data.format]] : [["level", data.level], ["data files", String(data.files)]]),
    ...(about.written ? [["index written", about.written.replace("T", " ").replace("Z", " UTC")]] : []),
    ["read by ckptfmt", about.version], ...(about.digest ? [["digest", about.digest]] : []),
    ...(comparison ? [["compared with", comparison.before]] : []),
  ];
  // Of a float, as many digits as tell it from others.
  const brief = (text) => /^-?\d+\.\d{8,}$/.test(text) ? number(Number(text)) : text;
  for (const [name, text] of facts) { const value = brief(text); $("summary").append(make("div", { class: value.length > 40 ? "wide" : null }, make("dt", {}, name), make("dd", { title: value === text ? null : text }, value))); }
  const more = $("values"), hidden = about.values_count - about.values.length;
  if (others.length) {
    const rows = hidden > 0 ? [...others, [`and ${count(hidden)} more`, ""]] : others;
    more.append(make("details", {}, make("summary", {}, `${count(others.length + Math.max(hidden, 0))} other values of the state`), plain(null, rows)));
  }
  if (about.random.length) more.append(make("p", {}, `States of random numbers: ${about.random.join(", ")}`));
  if (metadata.length) more.append(folding("metadata value", metadata.length, plain(null, metadata)));
  const shares = [];
  for (const role of ROLES) {
    const [, , parameters, bytes] = data.parts.find((part) => part[0] === role) || [role, 0, 0, 0];
    if (!bytes) continue;
    const part = make("div", { class: role });
    part.style.width = `${100 * bytes / total}%`;
    $("share").append(part);
    const text = `${LABELS[role]} ${plural(parameters, "element")}, ${size(bytes)} (${(100 * bytes / total).toFixed(1)}%)`;
    shares.push(text);
    $("share-text").append(make("span", { class: "share" }, patch(role), text));
  }
  if (shares.length) $("share").setAttribute("aria-label", shares.join("; "));
  else $("share").remove();
}

// ---- health
{
  const say = (text) => $("health").append(make("li", {}, text));
  const said = new Set(health.items.map((one) => one.text));
  for (const text of health.findings) if (!said.has(text)) $("findings").append(make("li", {}, text));
  const KINDS = { damaged: "damaged", nan: "with NaN", infinite: "with infinity", rows: "with dead rows", columns: "with dead columns", outlier: "much larger than their peers", zero: "all zero" };
  const kinds = health.kinds.map(([kind, times]) => `${count(times)} ${KINDS[kind] || kind}`).join(", ");
  if (health.items.length) $("findings").append(make("li", {}, `Tensors to look at: ${kinds}.`));
  for (const { name, text, place } of health.items) {
    const shown = byName.has(name) ? button(name, () => select(name)) : name;
    $("warnings").append(make("li", {}, shown, `: ${text}${place && place.length ? `, the first at ${shape(place)}` : ""}`));
  }
  const more = health.kinds.reduce((all, [, times]) => all + times, 0) - health.items.length;
  if (more > 0) $("warnings").append(make("li", {}, `and ${count(more)} more`));
  $("warnings").hidden = !health.items.length;
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
  if (!health.items.length && health.whole + health.sampled) say(`No NaN, infinity, outlier, dead row, dead column${health.zero_slots ? "" : " or tensor of zeros"} was found in what was measured.${health.sampled ? " Of a sample, columns were not looked at." : ""}`);
  if (health.zero_slots) say(`${plural(health.zero_slots, "optimizer slot")} all zero, as those of variables that were not trained.`);
}
