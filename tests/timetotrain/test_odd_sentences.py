"""Tests files of sentences as people have them, and on which side a pair is."""

import pytest

from common.data.folder_conversion import Options
from common.data.report import Report
from common.errors import UserError
from common.text import custom_text, sentences
from tests.timetotrain.converting import convert

GOOD_DAYS = [f"Good day, {n}n men" for n in "hijklmnopqrs"]
GOOD_PAIRS = [f"{one}\tTag, {one[10:12]} Mann" for one in GOOD_DAYS]


@pytest.mark.parametrize(
    ("content", "program"),
    [
        ('<refset setid="a"><doc><seg id="1">a</seg></doc></refset>', "SGM"),
        ("<?xml version='1.0'?>\n<tmx>", "TMX"),
        ('<seg id="1">a</seg>', "tags"),
        ("<url>http://x</url>\na", "tags"),
        ('{"translation": {"en": "a"}}', "JSON"),
        ('msgid "a"\nmsgstr "b"', "gettext"),
        ("1\n00:00:01,000 --> 00:00:02,000\na", "subtitles"),
        ("a ||| b", "|||"),
        ('[\n {"en": "a"}\n]', "JSON"),
        ('["a", "b"]', "JSON"),
        ('[["a", "b"]]', "JSON"),
        ('[{"en": "' + "a" * (2 << 20), "JSON"),
        ('<?xml version="1.0"?>\n<!DOCTYPE cesAlign>\n<cesAlign>', "XML"),
    ],
)
def test_sentences_with_markup_are_refused_by_name(tmp_path, capsys, content, program):
    path = tmp_path / "a.xml"
    path.write_text(content + "\n")
    assert convert("transformer", path, path, tmp_path / "out") == 2
    assert program in capsys.readouterr().err


@pytest.mark.parametrize(
    "row",
    [
        "{n}\t{a}\t1{n}\t{b}",
        "1.{n}\t{a}\t{b}",
        "{a}\t{b}\tby me, {n}",
        "{a}\t{b}",
        "{n}\teng\t{a}\t1{n}\tswe\t{b}",
        "https://a.b/{n}\thttp://a.b\t{a}\t{b}\t0.{n}",
        "{a}\t\t{b}",
    ],
)
def test_columns_of_numbers_codes_addresses_and_names_are_no_sentences(tmp_path, row):
    lines = [row.format(n=n, a=f"sentence {n}", b=f"mening {n}") for n in range(30)]
    (tmp_path / "a.tsv").write_text("\n".join(["en\tsv", *lines][row.count("\t") > 1 :]))
    pairs = custom_text.prepared([tmp_path / "a.tsv"], options := Options())
    assert (len(pairs.train.rows), len(pairs.evaluation.rows)) == (27, 3)
    assert all(a[0] == "s" and b[0] == "m" for a, b in pairs.train.rows)
    assert len(options.report.skipped) == 1


@pytest.mark.parametrize(
    ("text", "sources", "skipped"),
    [
        *((f"{sound}\tx", [sound], 0) for sound in ('["Hello"]', "<url> is a site", "[{0}] is it")),
        ("id\tscore\tsource\ttarget\n1\t0.5\tGood day\tTag\n2\t0.7\tBye\tWeg", ["Good day", "Bye"], 2),
        ("1\tGood day\tTag\n2\tBye\n3\tYes\tJa", ["Good day", "Yes"], 1),
        ("\nen\tde\nGood day\tTag", ["Good day"], 1),
        ("he\ter\nshe likes\tsie mag", ["he", "she likes"], 0),
        ("it\tes\nshe\tsie", ["it", "she"], 0),
        ("Is it\tEs\nGood day\tTag", ["Is it", "Good day"], 0),
        ("text file\tDatei\nGood day\tTag", ["text file", "Good day"], 0),
        ("id\ten\tde\na\tGood day\tTag\nb\tBye\tWeg", ["Good day", "Bye"], 2),
        ("a\ten\tde\nf.mp3\tGood day\tTag\ng.mp3\tBye\tWeg", ["Good day", "Bye"], 2),
        ("f1.mp3\tGood day\tTag\nf2.mp3\tBye\tWeg\nf3.mp3\tYes\tJa", ["Good day", "Bye", "Yes"], 1),
        ("\ten\tde\n0\tGood day\tTag\n1\tBye\tWeg", ["Good day", "Bye"], 2),
        ("target\tsource\nTag da\tGood day", ["Good day"], 1),
        ("english_sentence\tSource text\nGood day\tTag", ["Good day"], 1),
        ('en\tde\n"Good\nday"\t"Tag"\nBye\t"Weg\nda"', ["Good day", "Bye"], 1),
        ('en\tde\nBye\tWeg\n"Good day\nYes\tJa', ["Bye", "Yes"], 1),
        ("en\tde\n1\tGood day\tTag\n2\tBye\tWeg", ["Good day", "Bye"], 2),
        ("en\tde\nGood day\tTag\tformal\nBye\tWeg\tcasual", ["Good day", "Bye"], 2),
        ("en\tde\tfr\nH2O\tdas Wasser\tde l'eau\nCO2\tdas Gas\tdu gaz", ["H2O", "CO2"], 2),
        ("de\ten\tscore\nnice\t2\t1\nso ist\t3\t0", ["nice", "so ist"], 2),
        ("H2O\tdas Wasser\tchem. Formel\nCO2\tdas Gas\tes\nNH3\tb\tc", ["H2O", "CO2", "NH3"], 1),
        ("B1\tVitamin\t3\nB2\tZwei\t4", ["B1", "B2"], 1),
        ("en\tid\nGood day\tSelamat siang", ["Good day"], 1),
        ("en_XX\tde_DE\n" + "\n".join(GOOD_PAIRS), GOOD_DAYS, 1),
        ("\n".join(f"{'ab'[n < 5]}\t{pair}" for n, pair in enumerate(GOOD_PAIRS)), GOOD_DAYS, 1),
        ('"a 5"" disc"\tx\nan inch" more\ty', ['a 5" disc', 'an inch" more'], 0),
    ],
)
def test_sentences_are_told_from_ids_and_names(tmp_path, text, sources, skipped):
    (tmp_path / "a.tsv").write_text(text)
    pairs = list(sentences.read([tmp_path / "a.tsv"], 100, report := Report()))
    assert [source for source, _ in pairs] == sources and len(report.skipped) == skipped


def test_a_csv_has_the_columns_that_its_first_line_names_or_tabs(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("en,de\nWell then, yes,Nun, ja\nBye,Weg\n")
    assert list(sentences.read([path], 100, report := Report())) == [("Bye", "Weg")]
    assert list(report.left_out) == [
        "more columns than the line of names, 2; a comma inside of a sentence? put it in quotes"
    ]
    path.write_text("Well, yes, he\tNun, ja\nBye\tWeg\n")
    assert next(sentences.read([path], 100, Report())) == ("Well, yes, he", "Nun, ja")


def test_a_file_with_one_column_of_sentences_is_no_file_of_pairs(tmp_path):
    (tmp_path / "a.tsv").write_text("".join(f"{n}\tdeu\tGuten Tag {n}\n" for n in range(4)))
    with pytest.raises(UserError, match="only column 3 of 3 has sentences"):
        list(sentences.read([tmp_path / "a.tsv"], 100, Report()))
    (tmp_path / "a.tsv").write_text("".join(f"May {n}, 1998\t1998-05-{n}\n" for n in range(4)))
    assert len(list(sentences.read([tmp_path / "a.tsv"], 100, report := Report()))) == 4
    assert len(report.suspicious) == 1


def test_one_sentence_in_every_line_and_translations_further_on_are_no_codes(tmp_path):
    same = [f"Stop!\tHalt {n}!\tby me, {n}" for n in range(25)]
    late = [f"sentence {n}\t{f'mening {n}' if n > 21 else ''}\tby me, {n}" for n in range(30)]
    for rows, first in ((same, ("Stop!", "Halt 0!")), (late, ("sentence 22", "mening 22"))):
        for head in ([], ["en\tsv\tid"]):
            (tmp_path / "a.tsv").write_text("\n".join([*head, *rows]))
            assert next(sentences.read([tmp_path / "a.tsv"], 100, Report())) == first


def test_a_sentence_to_evaluate_on_that_is_trained_on_is_suspicious(tmp_path):
    for name, count in (("a", 9), ("held", 2)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"sentence {n}\tmening {n}\n" for n in range(count)))
    options = Options(eval_sources=(tmp_path / "held.tsv",))
    custom_text.prepared([tmp_path / "a.tsv"], options)
    assert options.report.suspicious["the same sentence to train and to evaluate on"].count == 2


def test_translations_of_one_sentence_stay_on_one_side(tmp_path):
    source, target = tmp_path / "a.en", tmp_path / "a.sv"
    source.write_text("".join(f"Sentence {n // 2}\n" for n in range(400)))
    target.write_text("".join(f"mening {n}\n" for n in range(400)))
    pairs = custom_text.prepared([source, target], Options(eval_part=0.2))
    sides = [{source for source, _ in part.rows} for part in (pairs.train, pairs.evaluation)]
    assert sides[0] and sides[1] and not sides[0] & sides[1]
