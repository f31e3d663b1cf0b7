// SPDX-License-Identifier: Apache-2.0
// Tables, of which only the rows in view are in the page; all of them when it is printed.
const ROW = 26;
let character = 8;
const tablesShown = [];
/* Columns have a title, `key` to sort by, `cell` for the text (the first one: `name` of the row), perhaps
   `picture`; `width`, and `fit` where no text may be cut. `act` is what a row does, null if it does nothing. */
function table(box, columns, source, first, act) {
  for (const column of columns.filter((one) => one.fit)) for (const one of source) column.width = Math.max(column.width, 9 * column.cell(one).length + 17);
  let visible = source.slice(), order = first;
  const head = make("tr", {}), body = make("tbody", {});
  const inside = make("table", { "aria-rowcount": source.length + 1 }, make("colgroup", {}, ...columns.map((column) => make("col", column.width ? { style: `width:${column.width}px` } : {}))), make("thead", {}, head), body);
  columns.forEach((column, at) => head.append(make("th", { scope: "col", class: column.right ? "n" : null },
    button(column.title, () => { order = [at, order[0] === at ? -order[1] : column.down || 1]; sort(); paint(true); }))));
  inside.style.minWidth = `${columns.reduce((every, column) => every + (column.width || 180), 0)}px`;
  box.append(inside);
  function sort() {
    const [at, direction] = order, of = columns[at].key;
    visible.sort((a, b) => {
      const x = of(a), y = of(b);
      if (x === y) return 0;
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return (x < y ? -1 : 1) * direction;
    });
    [...head.children].forEach((one, column) => one.setAttribute("aria-sort", column !== at ? "none" : direction > 0 ? "ascending" : "descending"));
  }
  function line(one, at, room) {
    const text = one.name || "(empty)", what = act(one);
    const name = what
      ? button(ended(text, room), what, { title: text, "aria-label": text, class: one.error || one.warnings ? "warn" : null })
      : make("span", { title: text }, ended(text, room));
    const row = make("tr", { "aria-rowindex": at + 2, "aria-selected": one.name === selected ? "true" : null, class: what ? "acts" : null }, make("td", {}, name),
      ...columns.slice(1).map((column) => {
        const cell = column.cell(one), picture = column.picture && column.picture(one);
        return make("td", { class: column.right ? "n" : null, title: cell.length > 12 ? cell : null }, picture, cell);
      }));
    // The whole row does what its name does, but where text is being selected.
    if (what) row.addEventListener("click", (event) => { if (!event.target.closest("button") && getSelection().isCollapsed) what(); });
    return row;
  }
  function paint(top, whole) {
    if (top) box.scrollTop = 0;
    const room = whole ? Infinity : Math.floor(head.firstChild.clientWidth / character) - 3;
    const begin = whole ? 0 : Math.max(0, Math.floor(box.scrollTop / ROW) - 10), end = whole ? visible.length : Math.min(visible.length, begin + Math.ceil(Math.max(box.clientHeight, 440) / ROW) + 20);
    const space = (rows) => { const row = make("tr", { class: "space", "aria-hidden": "true" }, make("td", { colspan: columns.length })); row.firstChild.style.height = `${rows * ROW}px`; return row; };
    const focus = body.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    const list = begin ? [space(begin)] : [];
    for (let at = begin; at < end; at += 1) list.push(line(visible[at], at, room));
    if (end < visible.length) list.push(space(visible.length - end));
    body.replaceChildren(...list);
    if (focus !== null) ([...body.querySelectorAll("button")].find((one) => one.getAttribute("aria-label") === focus) || box).focus();
    inside.setAttribute("aria-rowcount", visible.length + 1);
  }
  box.tabIndex = 0;
  box.addEventListener("scroll", () => requestAnimationFrame(() => paint(false)));
  sort();
  const made = { paint, rows: () => visible, show(matches) { visible = source.filter(matches); sort(); paint(true); return visible.length; } };
  tablesShown.push(made);
  return made;
}
let selected = null;
const repaint = () => tablesShown.forEach((one) => one.paint(false));
