"""Opens the report, the index, a comparison, the page that follows a run and the data page in a real browser.

Skipped where there is no Chromium: on Debian `apt-get install chromium` brings it.
"""

import argparse
import io
import json

import pytest
from PIL import Image

from common.config.data_description import Description
from common.data import dataset_page
from common.data.folder_conversion import Card, Conversion
from common.data.report import Report
from compliance.report import page as report_page
from tests import browser
from tests.compliance import llama_logs, result_logs
from tests.timetotrain.run.test_follow import records
from timetotrain.follow import page

pytestmark = pytest.mark.skipif(
    browser.program() is None, reason="no Chromium on this machine: apt-get install chromium"
)
WIDTHS, SCHEMES = (1300, 420), ("light", "dark")
LONG = "an-accelerator-of-8_with_a_name_that_does_not_end_n1024_ngc26.04_framework"
MARKUP = "<script>window.hit = 1</script><img src=x onerror=hit=1>"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    made = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


def _call(module, *words):
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    assert module.run(parser.parse_args([str(word) for word in words])) == 0


def _tree(root):
    """Five folders of runs: sound ones, one short of runs, one that failed, one of a submitter called markup."""
    results, described = root / "Example" / "results", root / "Example" / "systems"
    described.mkdir(parents=True)
    for system in ("dgx-1", LONG):
        content = llama_logs.description(submitter="Example", status="onprem", system_name=system)
        (described / f"{system}.json").write_text(json.dumps(content))
        result_logs.write_results(results, "resnet", system=system, minutes=9 if system == LONG else 100)
    result_logs.write_results(results, "maskrcnn", org=MARKUP)
    result_logs.write_results(results, "ssd", count=2)
    result_logs.write_results(results, "transformer", status="aborted")
    return root / "Example"


def _picture(width, height):
    stored = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).save(stored, "PNG")
    return stored.getvalue()


def _data_page(folder):
    folder.mkdir()
    description = Description(
        "resnet",
        ("a", "b"),
        {"num_classes": 2, "input.path": f"/home/{LONG}" * 3},
        {"optimizer.rate": 0.1},
        {"train-00000": [123456, "0" * 64]},
        "ab" * 32,
        f"timetotrain data resnet /home/{LONG}/photos out",
        {"train": 90, "eval": 10},
        (f"/home/{LONG}/{LONG}.jpg: no whole picture in it",) * 40,
    )
    cards = [Card(f"train: {n}", _picture(224, 224)) for n in range(5)]
    cards += [Card("clip", _picture(1200, 100)), Card("text", None, (["▁ein", "wort" * 60], ["one", "two"]))]
    conversion = Conversion(
        description, [(f"class_{n}" * 4, 90 - n, 10) for n in range(9)], "pictures", [("sizes", "9")]
    )
    report = Report()
    report.take("pictures", 100)
    report.leave_out("no whole picture in it", f"/home/{LONG}/{LONG}.jpg")
    report.suspect(f"the same picture in both parts {MARKUP}", f"{LONG}.jpg")
    return dataset_page.write(folder, conversion, cards, "Read through the input pipeline of a run.", report)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """{name: file} of every kind of page."""
    root = tmp_path_factory.mktemp("pages")
    tree, out = _tree(root), {name: root / f"{name}.html" for name in ("report", "index")}
    _call(report_page, tree, "-o", out["index"])
    _call(report_page, tree / "results" / LONG / "resnet", "-o", out["report"])
    out["follow"] = root / "follow_0.html"
    end = {"kind": "end", "step": 20, "seconds": 11.0, "status": "success", "reason": ""}
    out["follow"].write_text(page.render([*records(), end]))
    return out | {"data": _data_page(root / "data")}


NAMES = ("report", "index", "follow", "data")
# Cells and scrolling boxes that show less than they hold, and what ends beyond the window.
CUT = """(() => {
  const shown = [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility());
  const beyond = shown.filter((e) => !e.closest("svg") && e.getBoundingClientRect().right > innerWidth + 1);
  const scrolled = shown.filter((e) => e.matches(".scroll, td, th, dd, figure, li, p, .card, code") &&
    e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== "inline");
  return [...beyond, ...scrolled].map((e) => `${e.tagName}.${e.className}: ${e.textContent.slice(0, 40)}`);
})()"""
# Text whose contrast with its background is below WCAG 2.2's 4.5 : 1 (success criterion 1.4.3).
FAINT = """(() => {
  const part = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const color = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const found = color(getComputedStyle(e).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const faint = (e) => {
    const style = getComputedStyle(e);
    const [a, b] = [light(color(e.closest("svg") ? style.fill : style.color)), light(behind(e))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
  };
  const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  return [...document.querySelectorAll("body *")]
    .filter((e) => own(e) && e.checkVisibility() && !e.matches("script, title, desc, option") && faint(e))
    .map((e) => `${e.tagName}: ${e.textContent.slice(0, 40)}`);
})()"""


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_whole_and_quiet_and_fetches_nothing(chromium, pages, name, width, scheme):
    """No error in the console, nothing from elsewhere, nothing cut at the side, no faint text, every folder open."""
    chromium.look(width, scheme=scheme)
    chromium.open(pages[name])
    chromium.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    own = (pages[name].as_uri(), "data:")
    assert chromium.errors == [] and chromium.run("window.hit") is None
    assert [address for address in chromium.requests if not address.startswith(own)] == []
    assert chromium.run("document.documentElement.scrollWidth") <= width
    assert chromium.run(CUT) == [] and chromium.run(FAINT) == []
    dark = chromium.run("matchMedia('(prefers-color-scheme: dark)').matches")
    background = chromium.run("getComputedStyle(document.body).backgroundColor")
    assert dark == (scheme == "dark") and (sum(map(int, background[4:-1].split(","))) < 200) == dark


def _column(chromium, number):
    script = (
        f"[...document.querySelectorAll('#index tbody tr')].filter(r => !r.hidden).map(r => r.cells[{number}]"
    )
    return chromium.run(script + ".textContent.trim())")


def _sort(chromium, name):
    script = (
        f"[...document.querySelectorAll('#index thead th')].find(h => h.textContent.startsWith('{name}'))"
    )
    chromium.run(f"{script}.querySelector('button').click()")
    return chromium.run(f"[{script}.cellIndex, {script}.getAttribute('aria-sort')]")


def test_the_index_sorts_numbers_and_words_both_ways_with_no_score_last(chromium, pages):
    chromium.look()
    chromium.open(pages["index"])
    column, how = _sort(chromium, "Score")
    actual = _column(chromium, column)
    numbers = [float(text) for text in actual if text != "–"]
    assert how == "ascending" and numbers == sorted(numbers) and len(numbers) == 3
    assert actual[3:] == ["–", "–"] and numbers == [9.0, 32.0, 100.0]
    _, how = _sort(chromium, "Score")
    assert how == "descending" and _column(chromium, column) == [*actual[2::-1], "–", "–"]
    column, _ = _sort(chromium, "Benchmark")
    assert _column(chromium, column) == ["maskrcnn", "resnet", "resnet", "ssd", "transformer"]
    assert chromium.run("document.querySelectorAll('[aria-sort]').length") == 1
    assert chromium.run(CUT) == [] and chromium.errors == []


def _shown(chromium):
    return _column(chromium, 1), chromium.run("document.getElementById('shown').textContent")


def test_the_index_filters_by_words_and_verdict(chromium, pages):
    chromium.look()
    chromium.open(pages["index"])
    assert _shown(chromium)[1] == "5 of 5"
    chromium.run("document.getElementById('words').focus()")
    chromium.write("RESNET dgx-1")
    assert _shown(chromium) == (["resnet"], "1 of 5")
    chromium.run("words.select()")
    chromium.write("nothing of this")
    assert _shown(chromium) == ([], "0 of 5")
    chromium.run("words.value = ''; verdict.value = 'no-go'; verdict.dispatchEvent(new Event('change'))")
    names, said = _shown(chromium)
    assert names == ["ssd", "transformer"] and said == "2 of 5"


def test_a_link_opens_its_folder_and_so_does_an_address(chromium, pages):
    chromium.look()
    chromium.open(pages["index"])
    opened = "[...document.querySelectorAll('details.folder')].map((folder) => folder.open)"
    assert chromium.run(opened) == [False] * 5
    chromium.run("document.querySelector('#index a[href=\"#folder-2\"]').click()")
    chromium.until("document.getElementById('folder-2').closest('details').open")
    assert chromium.run(opened).count(True) == 1
    assert 0 <= chromium.run("document.getElementById('folder-2').getBoundingClientRect().top") < 900
    chromium.open(pages["index"].as_uri() + "#folder-4")
    assert chromium.run(opened) == [False, False, False, True, False]


FOCUSED = "document.activeElement.id || document.activeElement.textContent.trim()"
OUTLINED = "getComputedStyle(document.activeElement).outlineStyle !== 'none'"


def _tab_to(chromium, target, most=60):
    for _ in range(most):
        chromium.press("Tab")
        assert chromium.run(OUTLINED), chromium.run(FOCUSED)
        if chromium.run(FOCUSED) == target:
            return
    raise AssertionError(f"{target} is not reached with Tab")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_index_works_by_keyboard_alone(chromium, pages, width):
    chromium.look(width)
    chromium.open(pages["index"])
    _tab_to(chromium, "words")
    chromium.write("resnet")
    assert _shown(chromium) == (["resnet", "resnet"], "2 of 5")
    _tab_to(chromium, "Score, minutes")
    chromium.press("Enter")
    assert chromium.run("document.activeElement.parentElement.getAttribute('aria-sort')") == "ascending"
    chromium.press("Space")
    assert chromium.run("document.activeElement.parentElement.getAttribute('aria-sort')") == "descending"
    _tab_to(chromium, "resnet")
    chromium.press("Enter")
    chromium.until("document.querySelectorAll('details.folder[open]').length === 1")
    chromium.press("Tab")  # From the folder that the link names.
    assert chromium.run("document.activeElement.closest('details.folder').open")


@pytest.mark.parametrize("name", ["report", "data"])
def test_a_page_is_read_by_keyboard_alone(chromium, pages, name):
    """Tab reaches every link, summary and box that scrolls, in the page's order, and shows where it is."""
    chromium.look(420)
    chromium.open(pages[name])
    reached = (
        "[...document.querySelectorAll('a, summary, [tabindex], input')].filter(e => e.checkVisibility())"
    )
    count = chromium.run(f"{reached}.length")
    assert count > 0
    for index in range(count):
        chromium.press("Tab")
        assert chromium.run(f"{reached}.indexOf(document.activeElement)") == index
        assert chromium.run(OUTLINED)


def test_without_scripts_the_index_shows_all(chromium, pages):
    chromium.look()
    chromium.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.open(pages["index"])
        assert len(_column(chromium, 0)) == 5 and not chromium.run("controls.checkVisibility()")
        assert chromium.errors == []
    finally:
        chromium.call("Emulation.setScriptExecutionDisabled", value=False)


# ------------------------------------------------------------------------------------------- a run that goes on


@pytest.fixture
def fast(chromium):
    """The browser, with clocks in which a second takes 20 ms."""
    script = "const slow = setTimeout; window.setTimeout = (call, ms) => slow(call, ms / 50);"
    added = chromium.call("Page.addScriptToEvaluateOnNewDocument", source=script)
    chromium.look(420)
    yield chromium
    chromium.call("Page.removeScriptToEvaluateOnNewDocument", **added)
    chromium.open("about:blank")


STEP = "[...document.querySelectorAll('dl div')].find(d => d.textContent.includes('step')).textContent"


def test_a_page_written_again_is_read_again(fast, tmp_path):
    path = tmp_path / "follow_0.html"
    path.write_text(page.render(list(records(10))))
    fast.open(path)
    # The page may be between two readings, without its form.
    fast.until("(one => one && (one.click(), true))(document.querySelector('input[value=time]'))")
    path.write_text(page.render(list(records(20))))
    fast.until(f"document.querySelector('dl') && {STEP}.includes('20 of 40')")
    assert fast.run("document.body.className") == "time" and fast.errors == []
