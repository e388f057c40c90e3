"""Writes the headers of the published logs that presets follow: python -m tools.published_headers V0.6 V0.7

V0.6 and V0.7 are git directories of mlcommons/training_results_v0.6 and _v0.7. The result,
tests/pinned/published_headers.json, is a second transcription of the presets' values: only this file makes it, from
the logs that it names. tests/pinned/test_headers.py compares it with what each preset writes into its own log. To add a
preset, add an entry with its "log".
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from common.errors import UserError, answering
from common.files import whole

PINNED = OUTPUT = Path(__file__).resolve().parents[1] / "tests" / "pinned" / "published_headers.json"
# Keys that tell what happened or who ran it, not which values were set.
EVENTS = re.compile(
    r"(submission_|cache_clear|init_|run_|block_|epoch_|eval_start|eval_stop|eval_accuracy|seed$|tracked_stats)"
)

# Launch flags that set a preset's values; the other flags name machines, folders and modes.
KEPT = re.compile(
    r"(decode_hparams\.(alpha|beam_size|extra_length|mlperf_threshold)"
    r"|hparams\.(base_learning_rate|batch_size|conv0_space_to_depth|distributed_group_size|eval_batch_size)"
    r"|hparams\.((first|second)_lr_drop_(epoch|step)|iterations_per_loop|learning_rate|lr_warmup_(epoch|step))"
    r"|hparams\.(learning_rate_constant|learning_rate_warmup_steps|max_length|optimizer_adam_beta[12])"
    r"|hparams\.(total_steps|train_batch_size|use_bfloat16)"
    r"|(lars_)?base_learning_rate|lars_(epsilon|warmup_epochs)|learning_rate|momentum|weight_decay|label_smoothing"
    r"|((eval|train|infer)_)?batch_size|distributed_group_size|input_partition_dims|iterations_per_loop"
    r"|decay_(factor|interval|start|steps)|warmup_steps|num_(buckets|cores|epochs|examples_per_epoch|shards)"
    r"|stop_threshold|target_bleu|tpu_num_shards|train_steps)"
)
# Flags that the same run's log contradicts; the preset follows the log.
CONTRADICTED = {
    "resnet/v100-8": ("iterations_per_loop",),
    "maskrcnn/tpu-v4-16": ("num_epochs",),
    "maskrcnn/tpu-v4-128": ("num_epochs",),
    "maskrcnn/tpu-v4-512": ("num_epochs",),
    "maskrcnn/tpu-v3-1024": ("num_epochs",),
}


def logs() -> dict[str, tuple[str, str]]:
    """{benchmark/preset: (round, path of the log)}, as PINNED names them."""
    logs_of = {preset: entry["log"].split() for preset, entry in json.loads(PINNED.read_text()).items()}
    return {preset: (name.rpartition("_v")[2], path) for preset, (name, path) in logs_of.items()}


def parsed(line: str) -> tuple[str, object, dict] | None:
    """(key, value, metadata) of one line in either form: `:::MLL TIME KEY: JSON`, `:::MLLOG JSON`."""
    if ":::MLLOG" in line:
        record = json.loads(line.partition(":::MLLOG")[2])
        return record["key"], record["value"], record.get("metadata", {})
    match = re.search(r":::MLL \S+ (\w+): (\{.*\})", line)
    if not match:
        return None
    record = json.loads(match[2])
    return match[1], record["value"], record.get("metadata", {})


def script_of(log: str) -> str:
    """The path of the script that started the run of `log`, in the same repository."""
    _, _, system, benchmark, _ = log.split("/")
    return f"Google/benchmarks/{benchmark}/{system}/run_and_time.sh"


def flags_of(script: str) -> dict[str, str | list[str]]:
    """{flag: text} of a script's flags, without paths and names; `--hparams=a=1,b=2` gives `hparams.a` and so on."""
    flags: dict[str, list[str]] = {}
    for flag, text in re.findall(r"--(\w+)=(\S+)", script):
        parts = [(flag, text)]
        if flag.endswith("hparams"):
            parts = [(f"{flag}.{part.partition('=')[0]}", part.partition("=")[2]) for part in text.split(",")]
        for name, value in parts:
            if "/" not in value and not re.search(r"TPU_\d|tpu_name|\$", value):
                flags.setdefault(name, []).append(value)
    return {
        name: values[0] if len(values) == 1 else values
        for name, values in flags.items()
        if KEPT.fullmatch(name)
    }


def show(repository: str, path: str) -> str:
    """The text of a file at HEAD; '' if there is none."""
    command = ["git", "-C", repository, "show", f"HEAD:{path}"]
    return subprocess.run(command, check=False, capture_output=True).stdout.decode("latin-1")


def headers(repositories: dict[str, str]) -> dict[str, dict]:
    """Returns the values that each preset's log and launch script set, from {round: git directory}.

    Raises UserError if a repository lacks a log. Scripts may be absent.
    """
    result = {}
    for preset, (round_, path) in sorted(logs().items()):
        text = show(repositories[round_], path)
        if not text:
            raise UserError(
                f"{repositories[round_]}: no {path} at HEAD; "
                f"name a clone of mlcommons/training_results_v{round_}"
            )
        values: dict[str, object] = {}
        evaluations = []
        for line in text.splitlines():
            record = parsed(line)
            if record is None:
                continue
            key, value, metadata = record
            if key == "eval_accuracy" and metadata.get("epoch_num") is not None:
                evaluations.append(metadata["epoch_num"])
            if not EVENTS.match(key):
                values.setdefault(key, value)
        result[preset] = {
            "log": f"mlcommons/training_results_v{round_} {path}",
            "values": values,
            "flags": {
                flag: text
                for flag, text in flags_of(show(repositories[round_], script_of(path))).items()
                if flag not in CONTRADICTED.get(preset, ())
            },
            "evaluated_at": evaluations[:4],
        }
    return result


@answering()
def main(arguments: Sequence[str]) -> int:
    """Reads each log from its repository, and writes OUTPUT."""
    if len(arguments) != 2:
        raise UserError("give two git directories: python -m tools.published_headers V0.6 V0.7")
    text = json.dumps(headers(dict(zip(("0.6", "0.7"), arguments))), indent=1, sort_keys=True)
    with whole(OUTPUT) as path:
        path.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
