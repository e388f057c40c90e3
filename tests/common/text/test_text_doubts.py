"""Tests that parallel text with markup, lost encodings, stray columns or other languages is never taken in silence."""

import random
import re

import pytest

from common.data.folder_conversion import Options
from common.data.report import Report
from common.errors import UserError
from common.text import custom_text, sentences, subwords, text_doubts

ENGLISH = "Two men in blue shirts are standing on a ladder {n}.\n"
GERMAN = "Zwei Männer in blauen Hemden stehen auf einer Leiter {n}.\n"
FRENCH = "Deux hommes en chemise bleue se tiennent sur une échelle {n}.\n"


def read(folder, targets, sources=ENGLISH, name="a.de"):
    """Writes 60 pairs, whose targets are of the texts in turn; returns (pairs, report)."""
    both = folder / "a.en", folder / name
    both[0].write_text("".join(sources.format(n=n) for n in range(60)))
    both[1].write_text("".join(targets[n % len(targets)].format(n=n) for n in range(60)))
    return pairs_of(both)


def pairs_of(paths):
    options = Options()
    pairs = custom_text.prepared(paths, options)
    return sorted([*pairs.train.rows, *pairs.evaluation.rows]), options.report


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("Zwei M&auml;nner stehen auf einer Leiter {n}.\n", "an escaped character"),
        ("Sie sagt &quot;nein&quot; und geht weiter {n}.\n", "an escaped character"),
        ("Zwei <b>Männer</b> stehen auf einer Leiter {n}.\n", "a tag of HTML"),
        ("Zwei Männer\\nstehen auf einer Leiter \\u00fc {n}.\n", "an escape of a program"),
        (GERMAN.encode().decode("cp1252"), "text decoded twice"),
        ("Два человека стоят на лестнице {n}.\n".encode().decode("cp1251", "ignore"), "text decoded twice"),
        ("\u2581Zwei \u2581Männer \u2581stehen {n}.\n", "cut into subwords"),
        ("Zwei Män@@ ner stehen auf einer Lei@@ ter {n}.\n", "cut into subwords"),
        ("Ein gut @-@ aussehender Mann steht dort {n}.\n", "hyphens are split off"),
        ("Zwei M\ufffdnner stehen auf einer Leiter {n}.\n", "a character that was lost"),
        ("Zwei\u200b Männer stehen auf einer Leiter {n}.\n", "a character without width"),
        ("Ġ".join(GERMAN.split(" ")).replace("Ġ", " Ġ"), "cut into subwords"),
        ("Zwei</w> Män ner</w> stehen</w> dort</w> {n}.\n", "cut into subwords"),
        ("Sie sagt \x84nein\x93 und geht weiter {n}.\n", "a control character"),
        ("{n}\tZwei Männer stehen auf einer Leiter.\n", "a tab in a sentence"),
        ("nan\n", "an empty cell"),
        ("#NAME?\n", "an empty cell"),
        ("Zwei [[Männer]] stehen auf einer Leiter {n}.\n", "markup of a wiki"),
        ("Zwei|CARD|zwei Männer|NN|Mann stehen|VVFIN|stehen {n}.\n", "parts of speech"),
        ("7 812 4 33 {n}\n", "numbers alone"),
        ("Zwei M=C3=A4nner stehen auf einer Leiter {n}.\n", "an escape of mail"),
        ("Zwei M?nner stehen auf einer Leiter {n}.\n", "a question mark in a word"),
        ("[CLS] Zwei Männer stehen auf einer Leiter {n}. [SEP]\n", "a mark for a network"),
        ("\u202bZwei Männer stehen auf einer Leiter {n}.\n", "direction of writing"),
        (GERMAN.replace(" ", "\u00a0"), "no-break spaces"),
        ("__NULL__\n", "an empty cell"),
        (ENGLISH, "in another language"),
        ("{n}. " + GERMAN, "a number that begins the target"),
        ("Zwei Manner stehen auf einer Leiter {n}.\n", "no letter of the target has an accent"),
        ("Fehler: zu viele Anfragen an den Dienst.\n", "one target with many translations"),
        (ENGLISH, "one language"),
    ],
)
def test_what_looks_wrong_in_every_fifth_line_is_said(tmp_path, line, what):
    often = [line] * 5 if what[:3] in ("one", "a n", "no ") else [line, *[GERMAN] * 4]
    assert any(what in reason for reason in read(tmp_path, often)[1].suspicious)


@pytest.mark.parametrize("words", ["ខ្ញុំ ស្រលាញ់ អ្នក", "ฉัน รัก คุณ", "ຂ້ອຍ ຮັກ ເຈົ້າ", "ငါ မင်း ကို"])
def test_scripts_without_blanks_may_divide_words_without_width(tmp_path, words):
    text = words.replace(" ", "\u200b") + " {n}.\n"
    assert not any("without width" in what for what in read(tmp_path, [text], name="a.txt")[1].suspicious)


def test_lines_that_are_shifted_are_said_by_their_numbers(tmp_path):
    (tmp_path / "a.en").write_text("".join(ENGLISH.format(n=n) for n in range(60)))
    (tmp_path / "a.de").write_text("".join(GERMAN.format(n=n + 1) for n in range(60)))
    doubts = pairs_of((tmp_path / "a.en", tmp_path / "a.de"))[1].suspicious
    assert ["are the lines shifted" in what for what in doubts] == [True]


@pytest.mark.parametrize("key", ['"key_{n}" = ', "menu.item{n}=", "  item{n}: ", "{n}. "])
def test_a_key_that_begins_both_sides_is_said(tmp_path, key):
    doubts = read(tmp_path, [key + GERMAN], key + ENGLISH)[1].suspicious
    assert any("a key or number that begins both sides" in what for what in doubts)


def test_sides_that_were_sorted_alone_are_said_by_their_lengths(tmp_path):
    draw = random.Random(0)
    lines = ["".join(draw.choices("abcdefghij ", k=draw.randint(9, 99))) for _ in range(90)]
    for name, targets in (("whole", lines), ("sorted", sorted(lines, key=len))):
        (tmp_path / "a.en").write_text("\n".join(line[::-1] for line in lines))
        (tmp_path / "a.xx").write_text("\n".join(targets))
        doubts = pairs_of((tmp_path / "a.en", tmp_path / "a.xx"))[1].suspicious
        assert any("lengths of the two sides" in what for what in doubts) == (name == "sorted")


def test_a_shift_in_a_part_of_the_lines_and_a_few_swapped_pairs_are_said(tmp_path):
    draw = random.Random(0)
    numbers = [draw.sample(range(100), 6) for _ in range(600)]
    lines = [
        [f"{word} " + " ".join(f"{word[:2]}x{n}" for n in some) for word in ("house", "Haus")]
        for some in numbers
    ]
    lines = [[re.sub("[0-9]", lambda d: "abcdefghij"[int(d[0])], side) for side in pair] for pair in lines]
    sources, targets = map(list, zip(*lines))
    for name, texts in (("whole", targets), ("shifted", [*targets[:300], *targets[301:], targets[300]])):
        text_doubts.report([*zip(sources, texts)], (), report := Report())
        assert any("words of sources that go with other" in what for what in report.suspicious) == (
            name == "shifted"
        )
    pairs = [(ENGLISH.format(n=n), GERMAN.format(n=n))[:: -1 if n % 20 == 0 else 1] for n in range(100)]
    text_doubts.report(pairs, (), report := Report())
    assert report.suspicious["source and target swapped"].count == 5


def test_files_of_two_parts_are_refused_and_copies_stay_on_one_side(tmp_path):
    with pytest.raises(UserError, match="by their names different parts of a split"):
        list(sentences.read([tmp_path / "train.en", tmp_path / "valid.de"], 100, Report()))
    rows = [f"Go on {n}{'.' * (n % 3 == 0)}\tWeiter {n}" for n in range(20)]
    (tmp_path / "a.tsv").write_text("\n".join(rows + [row.replace(".", "").lower() for row in rows]))
    pairs = custom_text.prepared([tmp_path / "a.tsv"], Options(eval_part=0.3))
    sides = [
        {re.sub(r"\W", "", source.lower()) for source, _ in part.rows}
        for part in (pairs.train, pairs.evaluation)
    ]
    assert all(sides) and not sides[0] & sides[1]


def test_a_changed_vocabulary_of_one_path_is_read_again(tmp_path):
    pytest.importorskip("official.nlp.data")
    from transformer import convert

    numbers = []
    for text in ("aa bb cc dd", "dd cc xx yy"):
        (tmp_path / "text").write_text(f"{text}\n" * 20)
        (tmp_path / "words").unlink(missing_ok=True)
        subwords.build(tmp_path / "words", [str(tmp_path / "text")], 40)
        numbers.append(next(convert._encoded([("dd cc", "cc")], tmp_path / "words", 1)))
    assert (
        numbers[1] == tuple(map(subwords.Subwords(tmp_path / "words").encode, ("dd cc", "cc"))) != numbers[0]
    )


def test_files_to_evaluate_on_that_are_swapped_are_said(tmp_path):
    read(tmp_path, [GERMAN])
    paths = tmp_path / "a.en", tmp_path / "a.de"
    custom_text.prepared(paths, options := Options(eval_sources=paths[::-1]))
    assert "the source to evaluate on seems to be de, not en" in options.report.suspicious


def test_another_language_and_swapped_files_are_said_and_plain_text_is_not(tmp_path):
    assert not read(tmp_path, [GERMAN, "Sie sagt: AT&T & Söhne; 3 < 4 > 2; für's «Café» {n}.\n"])[
        1
    ].suspicious
    assert (
        "a target in another language than most, de" in read(tmp_path, [GERMAN, GERMAN, FRENCH])[1].suspicious
    )
    doubts = read(tmp_path, [ENGLISH], GERMAN)[1].suspicious
    assert {"the source seems to be de, not en", "the target seems to be en, not de"} <= set(doubts)


def test_a_tab_inside_of_a_sentence_is_no_pair(tmp_path):
    rows = ["a house\tein Haus", "a\ttree\tein Baum", "a dog\tein Hund\t", "a cat\teine Katze"]
    (tmp_path / "p.tsv").write_text("\n".join(rows))
    pairs, report = pairs_of([tmp_path / "p.tsv"])
    assert [target for _, target in pairs] == ["eine Katze", "ein Hund", "ein Haus"]
    assert list(report.left_out) == ["more columns than most lines, 2; a tab inside of a sentence?"]


@pytest.mark.parametrize("name", ["p.tsv", "p.csv"])
def test_quotes_of_tables_are_undone(tmp_path, name):
    sign = "\t" if name == "p.tsv" else ","
    rows = [("source", "target"), ('he says "no", twice', 'er sagt "nein", zweimal'), ("a, b", "c, d")]
    text = "".join(
        sign.join(f'"{cell.replace(chr(34), 2 * chr(34))}"' for cell in row) + "\n" for row in rows
    )
    (tmp_path / name).write_text(text)
    assert pairs_of([tmp_path / name])[0] == [
        ("a, b", "c, d"),
        ('he says "no", twice', 'er sagt "nein", zweimal'),
    ]


@pytest.mark.parametrize("line", ["\u200b", "\u200d \u00a0", "\ufeff", "\u3000"])
def test_a_line_without_a_visible_character_is_empty(tmp_path, line):
    (tmp_path / "a.en").write_text(f"one\ntwo\n{line}\n")
    (tmp_path / "a.de").write_text("eins\nzwei\ndrei\n")
    pairs, report = pairs_of([tmp_path / "a.en", tmp_path / "a.de"])
    assert len(pairs) == 2 and report.left_out[sentences.EMPTY].count == 1


def test_the_lengths_fit_a_script_without_blanks(tmp_path):
    pytest.importorskip("official.nlp.data")
    from transformer import custom_data

    signs = [chr(0x4E00 + n) for n in range(400)]
    draw = random.Random(0)
    (tmp_path / "a.en").write_text("".join(ENGLISH.format(n=n) for n in range(60)))
    lines = ["".join(draw.choices(signs, k=70)) + "\n" for _ in range(60)]
    (tmp_path / "a.zh").write_text("".join(lines))
    options = Options()
    conversion = custom_data.convert([tmp_path / "a.en", tmp_path / "a.zh"], tmp_path / "out", options)
    assert sum(conversion.description.split.values()) == 60 and not options.report.left_out
    assert options.report.choices["maximum tokens of a sentence"][1].startswith("the converter")
