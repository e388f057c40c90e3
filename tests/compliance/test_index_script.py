"""Runs the script of the report's index in Node on a table of four rows: how it sorts, filters and opens folders."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from compliance.report import page

SCRIPT = Path(page.__file__).parent / "templates" / "index.js"
# What the script uses of a document. Rows: benchmark, verdict, score as its cell shows it, score to sort by.
DOCUMENT = """
class Element {
  constructor(text = "", data = {}) {
    Object.assign(this, {textContent: text, dataset: data, on: {}, marks: {}, childNodes: []});
  }
  addEventListener(name, call) { this.on[name] = call; }
  append(...parts) { this.childNodes = parts; }
  getAttribute(name) { return this.marks[name]; }
  setAttribute(name, value) { this.marks[name] = value; }
  removeAttribute(name) { delete this.marks[name]; }
}
const ROWS = [["ssd", "no-go", "–", ""], ["resnet", "go", "100.0", "100"], ["maskrcnn", "go", "9.0", "9"],
  ["resnet", "go", "32.0", "32"]];
const made = ROWS.map(([name, verdict, shown, sort]) => Object.assign(
  new Element(name + " " + shown, {verdict}), {cells: [new Element(name), new Element(shown, {sort})]}));
const titles = [new Element("Benchmark"), new Element("Score")];
const part = {words: {value: ""}, verdict: {value: ""}, shown: {}, controls: {hidden: true}, index: {}, "folder-2": {}};
for (const name in part) part[name] = Object.assign(new Element(), part[name]);
part.index.tBodies = [Object.assign(new Element(), {rows: made, childNodes: made})];
part.index.tHead = {rows: [{cells: titles}]};
const folder = {open: false};
Object.assign(part["folder-2"], {closest: () => folder, scrollIntoView: () => {}});
const page = new Element();
const window = new Element(), location = {hash: ""};
const document = Object.assign(page, {getElementById: (name) => part[name], createElement: () => new Element()});
"""
ACTIONS = """
const seen = [];
const click = (column) => titles[column].childNodes[0].on.click();
const look = () => seen.push([
  part.index.tBodies[0].childNodes.filter((row) => !row.hidden).map((row) => row.textContent),
  part.shown.textContent, titles.map((head) => head.getAttribute("aria-sort") ?? "")]);
look();
click(1); look();
click(1); look();
click(0); look();
part.words.value = "RESNET 32"; part.words.on.input(); look();
part.words.value = ""; part.verdict.value = "no-go"; part.verdict.on.change(); look();
location.hash = "#folder-2"; window.on.hashchange();
console.log(JSON.stringify({seen, controls: part.controls.hidden, open: folder.open}));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node on this machine: apt-get install nodejs")
def test_the_index_sorts_both_ways_with_no_score_last_filters_and_opens_what_a_link_names(tmp_path):
    program = tmp_path / "page.js"
    program.write_text(DOCUMENT + SCRIPT.read_text().replace('"use strict";', "") + ACTIONS)
    done = subprocess.run(["node", program], capture_output=True, text=True, check=True, timeout=60)
    result = json.loads(done.stdout)
    ssd, slow, fast, middle = "ssd –", "resnet 100.0", "maskrcnn 9.0", "resnet 32.0"
    assert result["seen"] == [
        [[ssd, slow, fast, middle], "4 of 4", ["", ""]],
        [[fast, middle, slow, ssd], "4 of 4", ["", "ascending"]],
        [[slow, middle, fast, ssd], "4 of 4", ["", "descending"]],
        [[fast, slow, middle, ssd], "4 of 4", ["ascending", ""]],
        [[middle], "1 of 4", ["ascending", ""]],
        [[ssd], "1 of 4", ["ascending", ""]],
    ]
    assert result["controls"] is False and result["open"] is True
