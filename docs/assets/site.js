// What the site adds to Material. Tables of class "sortable": a click on a column's head sorts by it, the next one the other way.
function valueOf(cell) {
  const text = cell.textContent.trim();
  const number = parseFloat(text);
  return Number.isNaN(number) || /^[a-z]/i.test(text) ? text.toLowerCase() : number;
}

function compare(a, b) {
  const first = valueOf(a), second = valueOf(b);
  if (typeof first === typeof second) return first < second ? -1 : first > second ? 1 : 0;
  return typeof first === "number" ? -1 : 1; // what was not run comes last
}

function sortBy(table, column, ascending) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const known = row => row.cells[column].textContent.trim() !== "-";
  rows.sort((a, b) => known(b) - known(a) || (ascending ? 1 : -1) * compare(a.cells[column], b.cells[column]));
  body.append(...rows);
}

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const isNumber = [...table.tBodies[0].rows].some(row => typeof valueOf(row.cells[column]) === "number");
    const before = head.getAttribute("aria-sort");
    const ascending = before ? before === "descending" : !isNumber; // numbers: the highest first
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    sortBy(table, column, ascending);
  }));
}

document.querySelectorAll("table.sortable").forEach(makeSortable);

// For those who do not use a mouse: the search dialog has a name, wide tables can be scrolled with keys.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");

function openToKeys() {
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code").forEach(part => {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
  });
}

openToKeys();
addEventListener("load", openToKeys); // Material wraps tables when it has started
