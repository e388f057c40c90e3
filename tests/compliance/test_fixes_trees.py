"""Tests fixes of findings about a folder: what each says to do is done to a copy, which is judged again."""

import json
import re
import shutil
from pathlib import Path

import pytest

from compliance import check
from compliance.submission import tree_system
from compliance.submission.loose import with_loose_folders
from compliance.submission.tree import judge_tree
from systems import schema
from tests.compliance import llama_logs, submission_trees
from tests.compliance import test_submission as power
from tests.compliance.fixes import is_advice, of_wording, summaries

BATCH = '"global_batch_size", "value": 8'
LORA = "llama2_70b_lora"
SCRIPT, LINES = "LR=0.0004\n", "".join(f"step {n} loss 2.5\n" for n in range(20))


def logs(org):
    return sorted(org.glob("results/*/*/result_*.txt"), key=lambda path: int(re.search(r"\d+", path.stem)[0]))


def in_each(old, new, which=None):
    """Replaces a text in the logs, or in some of them."""

    def change(org, one=None):
        for path in logs(org)[which or slice(None)]:
            assert old in (text := path.read_text())
            path.write_text(text.replace(old, new))

    return change


def in_one(number, change):
    """Changes the text of one log."""

    def changed(org, one=None):
        path = logs(org)[number]
        path.write_text(change(path.read_text()))

    return changed


def own_log(number):
    """Puts the run's own log into the folder."""
    return in_one(number, lambda text: llama_logs.log(number))


def text_of(path, change):
    """Changes the text of a file, whose name may be a pattern."""

    def changed(org, one=None):
        (file,) = org.glob(path)
        file.write_text(change(file.read_text()))

    return changed


def described(**changes):
    """Changes fields of the description."""
    return text_of("systems/*.json", lambda text: json.dumps(json.loads(text) | changes))


def moved(old, new):
    def move(org, one=None):
        (org / new).parent.mkdir(parents=True, exist_ok=True)
        (org / old).rename(org / new)

    return move


def add_file(path, content="x"):
    def write(org, one=None):
        (org / path).parent.mkdir(parents=True, exist_ok=True)
        (org / path).write_bytes(content) if isinstance(content, bytes) else (org / path).write_text(content)

    return write


def remove(path):
    def change(org, one=None):
        shutil.rmtree(org / path) if (org / path).is_dir() and not (org / path).is_symlink() else (
            org / path
        ).unlink()

    return change


def all_of(*steps):
    def do(org, one=None):
        for step in steps:
            step(org, one)

    return do


def read(shape, then, of="fix"):
    """What `then` makes of the words that the fix (or what was expected) has at the groups of `shape`."""
    return lambda org, one: then(*re.search(shape, getattr(one, of)).groups())(org, one)


def other_name(org, name):
    org.rename(org.parent / name)


def sparse(path, size):
    with path.open("wb") as file:
        file.truncate(size)


def link(path, target):
    return lambda org, one=None: (org / path).symlink_to(target)


def jitter(text):
    near = re.sub(
        r'(accuracy", "value": )([\d.]+)', lambda one: f"{one[1]}{float(one[2]) + 1e-6}", llama_logs.log(5)
    )
    return near.replace("4005", "4004")


def times(factor):
    return lambda text: re.sub(
        r'"time_ms": (\d+)', lambda one: f'"time_ms": {int(int(one[1]) * factor)}', text
    )


PLACE = f"results/box/{LORA}"
CODE = f"benchmarks/{LORA}"
HIDDEN = '"samples_count": 3456, "epoch_num": 0.8859266854652653'
# (wording in texts.json, what damages the folder, what its fix says to do: a function of the folder and the finding).
# Either may return the path to judge instead.
OF_LOGS = [
    ("tree.run-count", lambda org: logs(org)[9].unlink(),
     read(r"over (\d+) runs", lambda count: add_file(f"{PLACE}/result_9.txt", llama_logs.log(int(count) - 1)))),
    ("tree.seed", in_each('"value": 4001', '"value": 4000', slice(1, 2)),
     in_each('"value": 4000', '"value": 4001', slice(1, 2))),
    ("tree.seed.none", in_each('"seed"', '"my_seed"', slice(2, 3)),
     read(r"key (\w+)", lambda key: in_each('"my_seed"', f'"{key}"', slice(2, 3)))),
    ("tree.rcp", in_each('"samples_count": 3456', '"samples_count": 1920'), lambda org,
     one: [own_log(n)(org) for n in range(10)]),
    ("tree.rcp.none", in_each(BATCH, BATCH[:-1] + "4096"),
     read(r"set (rcp-\w+)", lambda flag: add_file("package_checker_params", flag))),
    ("tree.rcp.batch", in_each(BATCH, BATCH[:-1] + "true"), in_each(BATCH[:-1] + "true", BATCH)),
    ("tree.rcp.unread", in_each('"samples_count": 3456', '"samples_count": "3456"', slice(3, 4)),
     in_each('"samples_count": "3456"', '"samples_count": 3456', slice(3, 4))),
    ("tree.rcp.undecided", lambda org: [path.rename(org / path.name) for path in logs(org)[2:]],
     lambda org, one: [path.rename(org / PLACE / path.name) for path in org.glob("result_*")]),
    ("tree.score", in_each('"success"', '"aborted"', slice(0, 2)), in_each('"aborted"', '"success"', slice(0, 2))),
    ("tree.duplicate", in_one(4, lambda text: llama_logs.log(5)), own_log(4)),
    ("tree.alike", in_one(4, lambda text: llama_logs.log(5).replace("4005", "4004")), own_log(4)),
    ("tree.alike.near", in_one(4, jitter), own_log(4)),
    ("tree.at-once", in_one(4,
         lambda text: re.sub(r'_ms": 17000(\d+)', lambda one: f'_ms": 17000{int(one[1]) + 10**7}', text)), own_log(4)),
    ("tree.short", in_one(4, times(0.001)), in_one(4, times(1000))),
    ("tree.gap", moved(f"{PLACE}/result_9.txt", f"{PLACE}/result_12.txt"),
     moved(f"{PLACE}/result_12.txt", f"{PLACE}/result_9.txt")),
    ("tree.settings", in_each('"lora_alpha", "value": 32', '"lora_alpha", "value": 16', slice(1, 2)),
     in_each('"lora_alpha", "value": 16', '"lora_alpha", "value": 32', slice(1, 2))),
    ("tree.stock.crashes", in_each(', "status": "success"', "", slice(6, 7)), own_log(6)),
    ("tree.stock.refuses", in_one(6, lambda text: text + "a :::MLLOG of a sentence\n"),
     in_one(6, lambda text: "".join(text.splitlines(keepends=True)[:-1]))),
    ("tree.scaling", add_file(f"{PLACE}/scaling.json", '{"scaling_factor": -1}'),
     read(r"gave: (.*)", lambda factor: add_file(f"{PLACE}/scaling.json", factor))),
    ("tree.value", in_each('"opt_gradient_clip_norm", "value": 0.3', '"opt_gradient_clip_norm", "value": -0.3'),
     in_each('"opt_gradient_clip_norm", "value": -0.3', '"opt_gradient_clip_norm", "value": 0.3')),
    ("tree.batch", in_each('accumulation_steps", "value": 1', 'accumulation_steps", "value": 3'),
     in_each('accumulation_steps", "value": 3', 'accumulation_steps", "value": 1')),
    ("tree.samples", in_each('"train_samples", "value": 3901', '"train_samples", "value": 39'),
     in_each('"train_samples", "value": 39', '"train_samples", "value": 3901')),
    ("tree.division", in_each('"closed"', '"open"', slice(6, 7)), own_log(6)),
    ("tree.placeholder", in_each('"Other Lab"', '"SUBMISSION_ORG_PLACEHOLDER"'),
     in_each('"SUBMISSION_ORG_PLACEHOLDER"', '"Other Lab"')),
    ("not-checked|put the log itself",
     lambda org: [moved(f"{PLACE}/result_9.txt", "a.txt")(org), link(f"{PLACE}/result_9.txt", org / "a.txt")(org)],
     all_of(remove(f"{PLACE}/result_9.txt"), moved("a.txt", f"{PLACE}/result_9.txt"))),
    ("not-checked|name it result_", moved(f"{PLACE}/result_9.txt", f"{PLACE}/run_9.txt"),
     read(r"name it (\w+_)", lambda name: moved(f"{PLACE}/run_9.txt", f"{PLACE}/{name}9.txt"))),
]  # fmt: skip
OF_PLACES = [
    ("tree.empty", lambda org: org / "benchmarks", lambda org, one: org),
    ("tree.no-results", lambda org: [path.rename(path.with_suffix(".out")) for path in logs(org)],
     lambda org, one: [path.rename(path.with_suffix(".txt")) for path in (org / PLACE).iterdir()]),
    ("tree.layout", lambda org: [moved(path,
         f"results/box/{path.name}")(org) for path in logs(org)] and remove(PLACE)(org),
     lambda org, one: [moved(path, f"{PLACE}/{path.name}")(org) for path in org.glob("results/box/*.txt")]),
    ("tree.benchmark-unknown", moved(PLACE, "results/box/chess"), moved("results/box/chess", PLACE)),
    ("tree.benchmark-unknown.near", moved(PLACE, "results/box/llama2_70b"),
     read(r"mean (\w+)\?", lambda name: moved("results/box/llama2_70b", f"results/box/{name}"))),
    ("tree.benchmark", moved(PLACE, "results/box/rgat"),
     read(r"to (\w+)/", lambda name: moved("results/box/rgat", f"results/box/{name}"))),
    ("tree.benchmark.none",
     lambda org: in_each('"submission_benchmark"', '"benchmark"',
         slice(9, 10))(org) or (org / PLACE).rename(org.parent / "runs"),
     lambda org, one: add_file(one.path, llama_logs.log(9))(org) or org.parent / "runs"),
    ("tree.name", add_file(".notes"), moved(".notes", "notes")),
    ("tree.name.checkout", lambda org: [(org / ".git").mkdir(), add_file(".gitignore")(org)], remove(".gitignore")),
    ("tree.link", link("benchmarks/a.txt", "nowhere"), remove("benchmarks/a.txt")),
    ("tree.size", lambda org: sparse(org / "benchmarks" / "a.txt", 51 << 20), lambda org,
     one: sparse(org / "benchmarks" / "a.txt", 1 << 20)),
    ("tree.compiled", add_file(f"{CODE}/a.o"), remove(f"{CODE}/a.o")),
    ("tree.archive", add_file(f"{CODE}/a.zip"), remove(f"{CODE}/a.zip")),
    ("tree.cache", add_file(f"{CODE}/__pycache__/a"), remove(f"{CODE}/__pycache__")),
    ("tree.file-missing", remove(f"{CODE}/implementations/nemo/README.md"), add_file(f"{CODE}/README.md")),
    ("tree.organization", lambda org: other_name(org, "Third"),
     lambda org, one: other_name(org.parent / "Third", one.found.partition(" (")[0].replace(" ", "_"))),
    ("tree.system-missing", moved("systems/box.json", "box.json"),
     read(r"write (\S+);", lambda name: moved("box.json", f"systems/{name}"))),
    ("tree.system", in_each('"1xbox"', '"1xcrate"'),
     all_of(moved("results/box", "results/crate"), moved("systems/box.json", "systems/crate.json"),
         described(system_name="crate"))),
    ("tree.system.file",
     all_of(moved("results/box", "results/box1"), moved("systems/box.json", "systems/box1.json"),
         described(system_name="box2")),
     described(system_name="box1")),
    ("tree.system-unclear", in_each('"1xbox"', '"Crate of ours"'), in_each('"Crate of ours"', '"box"')),
    ("tree.division.system", described(division="open"), described(division="closed")),
    ("tree.status", described(status="Available cloud"), described(status="Available on-premise")),
    ("tree.fast", described(accelerator_model_name="NVIDIA H100-SXM5-80GB", host_processor_model_name=""),
     described(number_of_nodes="8")),
    ("system.bom", text_of("systems/*.json", lambda text: "\ufeff" + text),
     text_of("systems/*.json", lambda text: text.removeprefix("\ufeff"))),
    ("system.json", text_of("systems/*.json", lambda text: text[:-1]),
     text_of("systems/*.json", lambda text: text + "}")),
    ("system.twice", text_of("systems/*.json", lambda text: text[:-1] + ', "cooling": "steam"}'),
     text_of("systems/*.json", lambda text: text.replace(', "cooling": "steam"}', "}"))),
    ("system.name", described(host_processor_model_name="EPYC-9575F"),
     read(r"write (.*), if", lambda name: described(host_processor_model_name=name))),
    ("system.count", described(accelerators_per_node="eight"),
     read(r'"(\d+)"', lambda count: described(accelerators_per_node=count))),
    ("system.field", described(status="here"), read(r"write '(.*?)'", lambda word: described(status=word))),
    ("name.hidden", described(submitter="Other\u200b Lab"), described(submitter="Other Lab")),
    ("not-checked|put the directory",
     lambda org: [moved("results/box", "box")(org), link("results/box", org / "box")(org)],
     all_of(remove("results/box"), moved("box", "results/box"))),
    ("not-checked|move them up", moved(f"{PLACE}/result_9.txt", f"{PLACE}/more/result_9.txt"),
     all_of(moved(f"{PLACE}/more/result_9.txt", f"{PLACE}/result_9.txt"), lambda org,
         one: (org / PLACE / "more").rmdir())),
]  # fmt: skip
SYSTEM, CONFIG = (
    f"benchmarks/{LORA}/{submission_trees.SYSTEM}",
    f"benchmarks/{LORA}/{submission_trees.SYSTEM}/b200.sh",
)
OF_CODE = [
    ("config.missing|add the file", moved(CONFIG, "b200.sh"), moved("b200.sh", CONFIG)),
    ("config.missing|add it, or log", moved(CONFIG, f"{SYSTEM}/b200x.sh"),
     read(r": (\S+) is there", lambda name: in_each('"b200.sh"', f'"{name}"'))),
    ("log.framework", in_each(LINES, ""), lambda org,
     one: [path.write_text(path.read_text() + LINES) for path in logs(org)]),
]  # fmt: skip


def renamed(old, new):
    def rename(org, one=None):
        for path in org.glob(f"results/*/*/power/*/{old}"):
            path.rename(path.with_name(new))

    return rename


OF_POWER = [
    ("power.files", renamed("node_1.txt", "node_5.txt"), renamed("node_5.txt", "node_1.txt")),
]


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Sound folders of submitters: of long logs, of code and framework logs of the newest round, of power logs."""
    top = tmp_path_factory.mktemp("sound")
    sound = {
        "logs": llama_logs.tree(top / "training_results_v5.0" / "Other_Lab", code="implementations/nemo")
    }
    config = [submission_trees.record("config_filename", "b200.sh")]
    texts = [submission_trees.log(n, more=config) + LINES for n in range(10)]
    sound["code"] = submission_trees.tree(top / "code", logs=texts, ruleset="v6.1")
    add_file(CONFIG, SCRIPT)(sound["code"])
    place = power.folder(top / "power", lambda run: ["node_0.txt", "node_1.txt", "sw_0.txt"])
    sound["power"] = place.parents[2]
    return {base: (org, judged(base, org)) for base, org in sound.items()}


def judged(base, path):
    """The findings of a folder, and its verdict; the short logs of code and of power pass by themselves."""
    if base == "logs":
        outcome = with_loose_folders(check([path]))
    else:
        outcome = judge_tree(path, log_checker=submission_trees.verdicts)
    return outcome.findings, outcome.verdict.answer


ROWS = [("logs", *row) for row in (*OF_LOGS, *OF_PLACES)]
ROWS += [("code", *row) for row in OF_CODE] + [("power", *row) for row in OF_POWER]


@pytest.mark.parametrize(("base", "wording", "damage", "mend"), ROWS, ids=[row[1] for row in ROWS])
def test_a_fix_of_a_folder_helps(tmp_path, bases, base, wording, damage, mend):
    sound, (clean, verdict) = bases[base]
    org = tmp_path / sound.parent.name / sound.name
    shutil.copytree(sound, org, symlinks=True)

    def whole(done):
        return done if isinstance(done, Path) else org.parent

    findings, _ = judged(base, whole(damage(org)))
    before = of_wording(findings, wording)
    assert before, [(one.rule, one.message, one.fix) for one in findings]
    assert (before[0].severity == "advice") == is_advice(wording)
    after, answer = judged(base, whole(mend(org, before[0])))
    # rcp-bypass lets the runs through, and the finding stays as advice; so does what an odd batch size does to a log.
    rest = {(one.rule, "advice", one.message) for one in findings} if wording == "tree.rcp.none" else set()
    assert summaries(after) <= summaries(clean) | rest
    assert answer == ("not checked" if wording == "tree.benchmark.none" else verdict)


def corrected(content, one, sound):
    """The description after what a finding says of a field: "write X", "write one of X, Y", "add it", "rename it"."""
    name, problem = re.match(r"The description's (\S+): (.*)", one.message).groups()
    if old := re.search(r"there is '(\w+)'", problem):
        return {key: value for key, value in content.items() if key != old[1]} | {name: content[old[1]]}
    if match := re.search(r"""write (?:one of )?(["'])(.*?)\1|e\.g\. "(\d+)\"""", one.fix):
        return content | {name: match[3] or match[2]}
    return content | {name: sound[name]}


def test_fixes_of_every_field_of_a_description_help(tmp_path):
    """A field that is missing, misspelled, a placeholder, empty, a list, a number or another word."""
    path, sound, tried = tmp_path / "box.json", llama_logs.description(), 0

    def findings_of(content):
        path.write_text(json.dumps(content))
        return tree_system.read_description(path, path, "5.0.0", strict=True)[1]

    for name in schema.NAMES:
        lacking = {key: value for key, value in sound.items() if key != name}
        others = (sound | {name: value} for value in ("TODO", "", ["x"], 8.5, None, "xyz"))
        for wrong in (lacking, lacking | {f"{name}s": sound[name]}, *others):
            for one in of_wording(findings := findings_of(wrong), "system.field"):
                after = summaries(findings_of(corrected(wrong, one, sound)))
                assert after <= summaries(findings) - {(one.rule, one.severity, one.message)}, (
                    wrong.get(name),
                    one,
                )
                tried += 1
    assert tried > 100
