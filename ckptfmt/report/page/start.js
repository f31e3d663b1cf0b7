// SPDX-License-Identifier: Apache-2.0
// What is drawn first, and when the window changes.
const probe = make("span", { class: "probe" }, "0".repeat(40));
document.body.append(probe);
character = probe.getBoundingClientRect().width / 40 || character;
probe.remove();
filter();
let waiting = 0;
function redraw() {
  if (root.bytes) paint();
  if (layerTable) chart();
  if (series) drawSeries();
  repaint();
}
// Paper is as wide as a page of A4, and has all rows.
const drawn = ["map", "layer-chart", "series-chart"].map($);
addEventListener("beforeprint", () => {
  drawn.forEach((one) => { one.style.width = "700px"; });
  document.querySelectorAll("details").forEach((one) => { one.open = true; });
  redraw();
  tablesShown.forEach((one) => one.paint(true, true));
});
addEventListener("afterprint", () => { drawn.forEach((one) => { one.style.width = ""; }); redraw(); });
addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(redraw); });
const address = decodeURIComponent(location.hash.slice(1));
if (byName.has(address)) select(address);
