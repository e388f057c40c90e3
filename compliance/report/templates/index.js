// Sorts and filters the index, and opens the folder that a link names. Without it the page shows everything.
"use strict";
const table = document.getElementById("index");
const body = table.tBodies[0];
const rows = [...body.rows];
const heads = [...table.tHead.rows[0].cells];

function key(row, column) {
  const text = row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
  return text === "" ? null : text;
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  const difference = Number(a) - Number(b);
  return Number.isNaN(difference) ? a.localeCompare(b, "en", { numeric: true }) : difference;
}

function sort(column) {
  const rising = heads[column].getAttribute("aria-sort") !== "ascending";
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", rising ? "ascending" : "descending");
  const sorted = [...rows].sort((a, b) => {
    const [first, second] = [key(a, column), key(b, column)];
    if (first === null || second === null) return compare(first, second);
    return rising ? compare(first, second) : compare(second, first);
  });
  body.append(...sorted);
}

heads.forEach((head, column) => {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  button.addEventListener("click", () => sort(column));
  head.append(button);
});

const controls = document.getElementById("controls");
const words = document.getElementById("words");
const verdict = document.getElementById("verdict");
const shown = document.getElementById("shown");

function filter() {
  const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    const fits = wanted.every((word) => text.includes(word)) &&
      (!verdict.value || row.dataset.verdict === verdict.value);
    row.hidden = !fits;
    count += fits;
  }
  shown.textContent = `${count} of ${rows.length}`;
}

controls.hidden = false;
words.addEventListener("input", filter);
verdict.addEventListener("change", filter);
filter();

function open() {
  const named = location.hash && document.getElementById(location.hash.slice(1));
  const folder = named && named.closest("details.folder");
  if (folder && !folder.open) {
    folder.open = true;
    named.scrollIntoView();
  }
}

window.addEventListener("hashchange", open);
document.addEventListener("DOMContentLoaded", open);  // The folders stand behind this script.
window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details.folder").forEach((folder) => { folder.open = true; });
});
performance.mark("index answers");
