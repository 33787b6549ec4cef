"use strict";

// Tables sort by a click on a header: numbers by value, largest first; text by alphabet.
const number = (text) => parseFloat(text.replace(/−/g, "-").replace(/^[<>≈~±[(\s]+|(?<=\d),(?=\d{3})|[\u2009\u202f]/g, ""));

function sort(table, head, column) {
  const body = table.tBodies[0];
  const numeric = head.classList.contains("number");
  const was = head.getAttribute("aria-sort");
  const down = was ? was === "ascending" : numeric;
  const key = (row) => row.cells[column].textContent.trim();
  const order = (a, b) => {
    if (!numeric) return key(a).localeCompare(key(b), document.documentElement.lang, { numeric: true });
    const [x, y] = [number(key(a)), number(key(b))];
    // What is not a number stays at the end, whichever the direction.
    if (isNaN(x) || isNaN(y)) return (isNaN(x) - isNaN(y)) * (down ? -1 : 1);
    return x - y;
  };
  body.append(...[...body.rows].sort((a, b) => (down ? order(b, a) : order(a, b))));
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
}

for (const table of document.querySelectorAll("table.sortable")) {
  for (const head of table.querySelector("tr.by").cells) {
    if (!head.textContent.trim()) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Sort by this column";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(table, head, head.cellIndex));
    head.append(button);
  }
}

// A table that is wider than its page, even in small print, becomes a list of its rows, in which every cell says
// what it is.
const roles = { TABLE: "table", TR: "row", TD: "cell", TH: "rowheader" };
const boxes = [...document.querySelectorAll(".table-box")];
for (const box of boxes) {
  const table = box.querySelector("table");
  const heads = [...(table.tHead?.rows ?? [])].at(-1)?.cells ?? [];
  for (const body of table.tBodies) for (const row of body.rows) {
    [...row.cells].forEach((cell, place) => { if (heads[place]?.textContent.trim()) cell.dataset.head = heads[place].textContent.trim(); });
  }
  // What is not laid out as a table is still read as one.
  for (const part of [table, ...table.querySelectorAll("tbody tr, tbody td, tbody th")]) part.role = roles[part.tagName];
}
// On paper one whose words fit stays a table, and its words stay whole.
const PAPER = 627; // pixels between the margins of A4
const tables = boxes.map((box) => box.querySelector("table"));
const fit = () => {
  for (const table of tables) { table.classList.remove("stacked", "small"); table.classList.add("least"); }
  const least = tables.map((table) => table.offsetWidth);
  for (const table of tables) table.classList.remove("least");
  const areWide = () => boxes.map((box) => box.scrollWidth > box.clientWidth);
  areWide().forEach((isWide, place) => tables[place].classList.toggle("small", isWide));
  const wide = areWide();
  tables.forEach((table, place) => {
    table.classList.toggle("stacked", wide[place]);
    table.classList.toggle("whole", least[place] <= PAPER);
  });
};
// Paper is narrower than most windows.
addEventListener("beforeprint", () => { for (const table of tables) table.classList.toggle("stacked", !table.matches(".whole")); });
addEventListener("afterprint", fit);
addEventListener("resize", fit);
fit();

// The contents are open beside the text, and folded above it where the window is narrow.
const contents = document.querySelector("#contents details");
if (contents) {
  const wide = matchMedia("(min-width: 74rem)");
  const fold = () => { contents.open = wide.matches; };
  wide.addEventListener("change", fold);
  fold();
  contents.addEventListener("click", (event) => {
    if (event.target.closest("a") && !wide.matches) contents.open = false;
  });
}
