"""Tests fixes of findings about a log: what each says to do is done to a copy of the log, which is judged again."""

import ast
import json
import re
from pathlib import Path

import pytest

import compliance
from compliance.findings import texts
from compliance.log import rules
from compliance.log.check_log import check_log
from tests.compliance import llama_logs, made_logs, result_logs, test_fixes_trees
from tests.compliance.fixes import NOT_ON_A_COPY, is_advice, of_wording, summaries
from tests.compliance.test_engine import findings_of

SOUND = llama_logs.log()
LARS = (
    "lars_opt_learning_rate_decay_steps",
    "lars_opt_learning_rate_decay_poly_power",
    "lars_opt_weight_decay",
)
OLD = {"submission_benchmark": "resnet", "opt_name": "lars", **dict.fromkeys(LARS, 1), "lars_epsilon": 0}
OLD |= {"opt_learning_rate_warmup_epochs": 5, "model_bn_span": 8}
BASES = {
    "lora": (SOUND, "5.0.0"), "resnet": (result_logs.log("resnet"), "0.7.0"),
    "old": (made_logs.seconds(made_logs.with_accuracy(0.8, made_logs.v06(**OLD))), "0.6.0"),
    "diffusion": (made_logs.lines(made_logs.log("4.0.0", "closed", "stable_diffusion")), "4.0.0"),
}  # fmt: skip


def line(key, text=SOUND, n=0):
    return [one for one in text.splitlines(keepends=True) if f'"key": "{key}"' in one or f" {key}: " in one][
        n
    ]


def value(text, key, new):
    """The log with another value of a key, as JSON."""
    return edit(text, key, lambda one: re.sub(r'("value": ).*?(?=, "metadata")', rf"\g<1>{new}", one))


def edit(text, key, edited, n=0):
    """The log whose n-th line of a key is edited: by a function, or to a text."""
    old = line(key, text, n)
    new = edited(old) if callable(edited) else edited
    assert new != old
    return text.replace(old, new, 1)


def without(key, n=0):
    return lambda text: edit(text, key, "", n)


def move(text, key, before):
    """The log with the line of a key right before another line."""
    old = line(key, text)
    return text.replace(old, "", 1).replace(before, old + before)


def times(text, change):
    return re.sub(r'"time_ms": (\d+)', lambda one: f'"time_ms": {change(int(one[1]))}', text)


def times_of(text, key, change):
    """The log with another time of a key, by milliseconds."""
    return edit(text, key, lambda one: times(one, lambda ms: ms + change))


def quoted(text):
    return f'"{text}"'


def number(text):
    return re.search(r"\d[\d.,]*", text)[0].replace(",", "").rstrip(".")


def words(text, shape):
    return re.search(shape, text).groups()


def put_back(key):
    """The log with the line of a key as a correct program writes it."""
    return lambda text, one, sound: edit(text, key, line(key, sound))


def sound(text, one, sound):
    return sound


def under(ruleset):
    return lambda text: (text, {"ruleset": ruleset})


PLACE = '"samples_count": 1536'
# (wording in texts.json, sound log, what damages it, what its fix says to do: a function of the damaged log, the
# finding and the sound log). A log may come with options of `check_log`.
FIXES = [
    ("value.near", "lora", lambda log: value(log, "submission_division", '"close"'),
     lambda log, one, _: value(log, "submission_division", quoted(*words(one.fix, r"mean (\w+)\?")))),
    ("value", "lora", lambda log: value(log, "lora_rank", "99"),
     lambda log, one, _: value(log, "lora_rank", number(one.expected))),
    ("value.unknown-benchmark", "lora", lambda log: value(log, "submission_benchmark", '"chess"'),
     lambda log, one, _: value(log, "submission_benchmark", quoted(*words(one.expected, r"(llama2\w+)")))),
    ("value.later-benchmark", "lora", under("3.1.0"),
     lambda log, one, _: (log, {"ruleset": words(one.fix, r"belongs to (\S+)")[0]})),
    ("occurs.missing", "lora", without("lora_alpha"),
     lambda log, one, sound: edit(log, "lora_rank", lambda at: line(one.fix.split()[-1], sound) + at)),
    ("occurs.misspelled", "lora", lambda log: log.replace('"lora_alpha"', '"lora_alfa"'),
     lambda log, one, _: log.replace(*map(quoted, words(one.fix, r"has (\w+): write (\w+)")))),
    ("occurs.differs", "lora", lambda log: edit(log, "lora_rank", lambda one: one + one.replace("16", "17")),
     lambda log, one, _: edit(log, "lora_rank", "", 1)),
    ("occurs.again", "lora", lambda log: edit(log, "lora_rank", lambda one: 2 * one),
     lambda log, one, _: edit(log, "lora_rank", "")),
    ("occurs.few", "diffusion", lambda log: re.sub(r'.*"eval_accuracy".*_count": 8,.*\n', "", log),
     lambda log, one, sound: sound if "at least 2" in one.message else log),
    ("occurs.with", "old", without("lars_epsilon"),
     lambda log, one, sound: edit(log, "opt_learning_rate_warmup_epochs", lambda at: line("lars_epsilon", sound) + at)),
    ("metadata", "lora", lambda log: log.replace(f"{PLACE}, ", ""),
     lambda log, one, sound: sound if "samples_count" in one.expected else log),
    ("asked", "lora", lambda log: (log, {"division": "open"}),
     lambda log, one, _: (log, {"division": one.found.strip("'")})),
    ("benchmark.no-rules", "resnet", under("4.1.0"), lambda log, one, _: (log, {"ruleset": "0.7.0"})),
    ("order", "resnet", lambda log: move(log, "run_start", line("init_stop", log)),
     lambda log, one, _: move(log, one.expected.split()[-1], line("run_start", log))),
    ("order.state", "old", lambda log: move(log, "eval_stop", line("eval_start", log)),
     lambda log, one, _: move(log, "eval_stop", line("block_stop", log))),
    ("order.init", "lora", lambda log: times_of(log, "init_start", -3_600_000),
     lambda log, one, _: times_of(log, "init_start", 3_600_000)),
    ("line-json", "lora", lambda log: edit(log, "lora_rank", lambda one: one[:60] + "\n"),
     lambda log, one, sound: log.replace(line("lora_rank")[:60] + "\n", line("lora_rank", sound))),
    ("line-several-records", "lora", lambda log: edit(log, "lora_rank", lambda one: one.rstrip() + " "),
     lambda log, one, _: log.replace(" :::", "\n:::")),
    ("line-form", "lora", lambda log: edit(log, "lora_rank", ":::MLLOG 16\n"),
     lambda log, one, sound: log.replace(":::MLLOG 16\n", line("lora_rank", sound))),
    ("line-field", "lora", lambda log: edit(log, "lora_rank", lambda one: re.sub(r'_ms": (\d+)', r'_ms": null', one)),
     lambda log, one, sound: put_back("lora_rank")(log, one, sound) if "number" in one.expected else log),
    ("line-field.missing", "lora", lambda log: edit(log, "lora_rank", lambda one: one.replace('"value": 16, ', "")),
     lambda log, one, _: log.replace('"key": "lora_rank", ', f'"key": "lora_rank", "{one.fix.split()[1]}": 16, ')),
    ("line-field.seconds", "lora", lambda log: edit(log, "lora_rank", lambda one: one.replace("time_ms", "time_s")),
     lambda log, one, _: log.replace('"time_s"', quoted(*words(one.fix, r"as (\w+)")))),
    ("line-token", "lora", lambda log: edit(log, "lora_rank", lambda one: one.replace("MLLOG ", "MLLOG")),
     lambda log, one, _: log.replace("MLLOG{", "MLLOG {")),
    ("line-key-twice", "lora", lambda log: edit(log, "lora_rank", lambda one: one.replace("16", '17, "value": 16')),
     lambda log, one, _: log.replace('17, "value": 16', "16")),
    ("line-too-long", "lora", lambda log: edit(log, "lora_rank", lambda one: one[:-2] + " " * (17 << 20) + "}\n"),
     lambda log, one, _: re.sub(r" {9,}", "", log)),
    ("line-other-form", "resnet", lambda log: log + ":::MLL 1600000000.5 opt_note: {\"value\": 1, \"metadata\": {}}\n",
     lambda log, one, _: re.sub(r":::MLL .*\n", "", log)),
    ("no-records", "lora", lambda log: "step 1\n", sound),
    ("no-records.other", "old", under("0.7.0"), lambda log, one, _: (log, {"ruleset": None})),
    ("no-records.utf16", "lora", lambda log: log.encode("utf-16"), lambda log, one, _: log.decode("utf-16")),
    ("not-checked|name the round", "lora", lambda log: (without("submission_benchmark")(log), {"ruleset": None}),
     lambda log, one, _: (log, {"ruleset": "5.0.0"})),
    ("not-checked|log submission_benchmark", "lora", without("submission_division"),
     lambda log, one, sound: edit(log, "submission_org", lambda at: line(*words(one.fix, r"and (\w+)"), sound) + at)),
    ("not-checked|fix the lines", "lora", lambda log: log.replace("MLLOG {", "MLLOG ["),
     lambda log, one, _: log.replace("MLLOG [", "MLLOG {")),
    ("eval_accuracy.target", "lora", lambda log: llama_logs.log(status="aborted"), sound),
    ("eval_accuracy.target.scale", "resnet", lambda log: re.sub(r'(accuracy", "value": )0\.(\d\d)', r"\1\2.", log),
     lambda log, one, _: scaled(log, one)),
    ("eval_accuracy.scale", "resnet", lambda log: value(log, "eval_accuracy", "77.5"), lambda log, one,
     _: scaled(log, one)),
    ("eval_accuracy.target.type", "lora", lambda log: value(log, "eval_accuracy", '"1.2"'),
     lambda log, one, _: value(log, "eval_accuracy", "1.2")),
    ("eval_accuracy.twice", "lora", lambda log: edit(log, "eval_accuracy", lambda one: one + one.replace("1.1", "1.0")),
     lambda log, one, _: edit(log, "eval_accuracy", "", 1)),
    ("run_stop.status", "lora", lambda log: llama_logs.log(status="aborted").replace('"aborted"', '"success"'),
     lambda log, one, _: log.replace('"success"', quoted(one.expected.split()[1]))),
    ("run_stop.status.failed", "lora", lambda log: log.replace('"success"', '"aborted"'),
     lambda log, one, _: log.replace('"aborted"', quoted(one.expected.split()[1]))),
    ("run_stop.status-word", "lora", lambda log: log.replace('"success"', '"done"'),
     lambda log, one, _: log.replace('"done"', quoted(*words(one.fix, r"status: (\w+)")))),
    ("run_stop.target-after", "lora",
     lambda log: times_of(move(log, "run_stop", line("eval_start", log, -1)), "run_stop", -3500),
     lambda log, one, _: times_of(edit(log, "run_stop", "") + line("run_stop", log), "run_stop", 3500)),
    ("run_stop.place", "lora", lambda log: log.replace('"status"', '"samples_count": 384, "status"'),
     lambda log, one, _: log.replace('384, "status"', f'{number(one.expected)}, "status"')),
    ("eval.place", "lora",
     lambda log: edit(log, "eval_accuracy", lambda one: re.sub(PLACE + ".*}}", '"samples_count": 1600}}', one)),
     lambda log, one, _: log.replace('1600', number(one.expected))),
    ("interval.unpaired", "lora", without("block_stop"),
     lambda log, one, sound: edit(log, "block_start", lambda at: at + line("block_stop", sound))),
    ("init.reversed", "lora", lambda log: times_of(log, "init_start", 60_000), put_back("init_start")),
    ("run.reversed", "lora", lambda log: times_of(log, "run_stop", -10**7), put_back("run_stop")),
    ("run.before-init", "lora", lambda log: times_of(log, "run_start", -5_000), put_back("run_start")),
    ("run.first-epoch", "resnet",
     lambda log: re.sub(r"(epoch_num\": )(\d+)", lambda one: f"{one[1]}{int(one[2]) + 4}", log), sound),
    ("written.value", "lora", lambda log: value(log, "lora_alpha", "16"),
     lambda log, one, _: value(log, "lora_alpha", number(one.expected))),
    ("written.schedule", "lora", lambda log: log.replace(PLACE, PLACE[:-2] + "00"),
     lambda log, one, _: log.replace(PLACE[:-2] + "00", PLACE[:-4] + number(one.expected.partition("first")[2]))),
    ("eval.schedule", "resnet", lambda log: log.replace('"epoch_num": 8', '"epoch_num": 7'),
     lambda log, one, _: log.replace('"epoch_num": 7', '"epoch_num": 8')),
    ("count", "resnet", lambda log: value(log, "train_samples", "1281024"),
     lambda log, one, _: value(log, "train_samples", number(one.expected))),
    ("cache_clear.false", "lora", lambda log: value(log, "cache_clear", "false"),
     lambda log, one, _: value(log, "cache_clear", one.fix.split()[-1])),
    ("seed.whole", "lora", lambda log: value(log, "seed", "4000.0"), lambda log, one, _: value(log, "seed", "4000")),
    ("submission_name.value", "lora", lambda log: value(log, "submission_org", "null"),
     lambda log, one, _: value(log, "submission_org", '"Lab"')),
    ("name.hidden", "lora", lambda log: value(log, "submission_org", '"L\u200bab"'),
     lambda log, one, _: value(log, "submission_org", '"Lab"')),
    ("smoke_run", "lora", lambda log: edit(log, "seed", lambda one: one + one.replace('"seed"', '"smoke_run"')), sound),
    ("time.seconds", "lora", lambda log: times(log, lambda ms: ms // 1000), lambda log, one,
     _: times(log, lambda s: s * 1000)),
    ("time.micro", "lora", lambda log: times(log, lambda ms: ms * 1000), lambda log, one,
     _: times(log, lambda us: us // 1000)),
    ("log.two-runs", "lora", lambda log: re.sub(r".*run_stop.*\n", "", log) + llama_logs.log(1),
     lambda log, one, _: "".join(log.splitlines(keepends=True)[one.lines[1] - 1 :])),
]  # fmt: skip


def scaled(log, one):
    """The log with fractions for percentages, as "log 0.775 for 77.5" says."""
    fraction, percentage = map(float, words(one.fix, r"([\d.]+) for ([\d.]+)"))
    assert fraction == pytest.approx(percentage / 100)
    return re.sub(
        r'("eval_accuracy", "value": )([\d.]+)',
        lambda at: f"{at[1]}{float(at[2]) / 100 if float(at[2]) > 1 else at[2]}",
        log,
    )


def judged(tmp_path, text, ruleset):
    """The findings of a log, which may come with options."""
    text, options = text if isinstance(text, tuple) else (text, {})
    path = tmp_path / "result_0.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return check_log(str(path), **{"ruleset": ruleset, **options}).findings


@pytest.mark.parametrize(("wording", "base", "damage", "mend"), FIXES, ids=[one[0] for one in FIXES])
def test_a_fix_helps(tmp_path, wording, base, damage, mend):
    sound, ruleset = BASES[base]
    broken = damage(sound)
    findings = judged(tmp_path, broken, ruleset)
    before = of_wording(findings, wording)
    assert before, [(one.rule, one.message, one.fix) for one in findings]
    assert (before[0].severity == "advice") == is_advice(wording)
    text = broken[0] if isinstance(broken, tuple) else broken
    after = judged(tmp_path, mend(text, before[0], sound), ruleset)
    # A run that missed its target stays a miss when its status tells so.
    rest = (
        summaries(findings) - summaries(before)
        if wording in ("run_stop.status", "not-checked|name the round")
        else set()
    )
    assert summaries(after) <= summaries(judged(tmp_path, sound, ruleset)) | rest


# ---------------------------------------------------------------------------------- every key of every rule file


def rules_of_keys():
    """(round, division, benchmark, optimizer), key: one case of each different rule of a key that a round asks for."""
    cases = {}
    for case in made_logs.every_case():
        ruleset, division, benchmark, optimizer = case
        files = [
            "common",
            f"{division}/common",
            f"{division}/{benchmark}",
            f"{division}/{benchmark}_{optimizer}",
        ]
        there = [rules.load(ruleset, name) for name in files if name in rules.names(ruleset)]
        removals = {key for one in there for key in one.get("removes", ())}
        for key, spec in (pair for one in there for pair in one["keys"].items() if pair[0] not in removals):
            if spec.get("occurs", "optional") != "optional" and "target" not in spec:
                cases.setdefault((key, json.dumps(spec)), (case, key))
    return list(cases.values())


def as_expected(text):
    """A value that a finding's expected value describes: "k x 4", "one of a, b", ">= 1", "a list of 2 entries"."""
    if entries := re.findall(r"(?:first|second) entry k x (\d+)", text):
        return [int(one) for one in entries]
    if counted := re.match(r"a list of (\d+)", text):
        return [1] * int(counted[1])
    if part := re.match(r"value / ([\d.]+) is a whole|lr_min x.*lr_min is ([\d.e-]+)", text):
        return float(part[1] or part[2])
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(r"^(one of|k x) |,.*|:.*| or .*| and .*| x 2.*", "", text)
    if text in ("not empty", "a whole number", "an integer"):
        return "text" if text == "not empty" else 16
    least = re.match(r">=? (.*)", text)
    try:
        return json.loads(least[1]) + 1 if least else json.loads(text)
    except ValueError:
        return text


def test_fixes_of_a_missing_key_and_of_a_wrong_value_help_by_every_rule_of_every_round():
    judged = 0
    for case, key in rules_of_keys():
        ruleset, records = case[0], made_logs.log(*case)
        sound = {one.rule for one in findings_of(records, ruleset)}
        places = {n for n, one in enumerate(records) if one["key"] == key}
        lacking = of_wording(
            findings_of([one for one in records if one["key"] != key], ruleset), "occurs.missing"
        )
        assert places and f"log {key}" in {one.fix for one in lacking}, (case, key)
        for wrong in ("x", "", -5, 0.1234567):
            broken = [one | {"value": wrong} if n in places else one for n, one in enumerate(records)]
            values = [one for one in findings_of(broken, ruleset) if one.rule == f"{key}.value"]
            if not values:
                continue
            replacement = as_expected(values[0].expected)
            fixed = [one | {"value": replacement} if n in places else one for n, one in enumerate(records)]
            remaining = {one.rule for one in findings_of(fixed, ruleset)} - sound
            assert f"{key}.value" not in remaining, (case, key, values[0].expected, replacement)
            judged += 1
            break
    assert judged > 100


# ----------------------------------------------------------------------------------- a row for every fix in the code


def fixes_in_code():
    """The fixes that the code writes itself: those of unchecked files, of `fix = ...` and "fix": ..."""
    for path in sorted(Path(compliance.__file__).parent.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            calls = {one.func for one in ast.walk(function) if isinstance(one, ast.Call)}
            names = {getattr(one, "id", getattr(one, "attr", "")) for one in calls}
            if isinstance(function, ast.FunctionDef) and names & {"unchecked", "finding", "make", "_make"}:
                for part in ast.walk(function):
                    yield from filter(None, map(sentence, parts_with_fixes(part)))


def parts_with_fixes(part):
    if isinstance(part, ast.Assign) and isinstance(target := part.targets[0], (ast.Name, ast.Tuple)):
        names = [getattr(one, "id", "") for one in getattr(target, "elts", [target])]
        values = part.value.elts if isinstance(part.value, ast.Tuple) else [part.value]
        return [value for name, value in zip(names, values) if name == "fix"]
    if isinstance(part, ast.Dict):
        return [value for key, value in zip(part.keys, part.values) if getattr(key, "value", "") == "fix"]
    if isinstance(part, ast.Call) and getattr(part.func, "id", "") == "unchecked":
        return part.args[3:4]
    return []


def sentence(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(one.value if isinstance(one, ast.Constant) else "X" for one in node.values)
    return node.value if isinstance(node, ast.Constant) else ""


def test_every_fix_has_a_row_or_a_reason_why_a_copy_cannot_show_it():
    rows = [one[0] for one in FIXES] + [one[1] for one in test_fixes_trees.ROWS]
    wordings = {wording.partition("|")[0] for wording in [*rows, *NOT_ON_A_COPY]}
    assert wordings == {*texts()["wording"]}
    starts = [wording.partition("|")[2] for wording in [*rows, *NOT_ON_A_COPY] if "|" in wording]
    for fix in fixes_in_code():
        assert any(re.match(start, fix.replace("X", "submission_benchmark")) for start in starts), fix
