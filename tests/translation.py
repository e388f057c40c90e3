"""Helpers for the tests of GNMT and the Transformer: a server of their data, conversions, evaluations."""

import contextlib
import dataclasses
import hashlib
import pathlib
import subprocess
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from common.config.schema import RunConfig
from common.distributed.replicas.base import Shard
from common.train.task import Task
from tests import datasets
from tests.benchmarks import one_batch_a_step

NEWSTEST = ("newstest2014.en", "newstest2014.de")


@dataclasses.dataclass(frozen=True)
class Server:
    """A small copy of WMT's servers.

    Attributes:
      folder: the served folder: archives in news/, crawl/ and europarl/, newstest2014 in test/.
      address: the server's address.
      files: the files that init_datasets.sh downloads.
    """

    folder: pathlib.Path
    address: str
    files: Sequence[pathlib.Path]

    def init_datasets(
        self, benchmark: str, data_dir: pathlib.Path, sums: str = "", **variables: str
    ) -> subprocess.CompletedProcess:
        """Runs BENCHMARK/init_datasets.sh on this server, with `sums` instead of the right checksums."""
        lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in self.files]
        note = data_dir.with_suffix(".sums")
        note.write_text(sums or "".join(lines))
        settings = {
            "DATA_DIR": str(data_dir),
            "SHA256SUMS": str(note),
            "SHARDS": "2",
            "WORKERS": "1",
            "NEWS_URL": f"{self.address}/news",
            "CRAWL_URL": f"{self.address}/crawl",
            "EUROPARL_URL": f"{self.address}/europarl",
            "NEWSTEST_URL": f"{self.address}/test",
        }
        return datasets.script(f"{benchmark}/init_datasets.sh", **settings | variables)


@contextlib.contextmanager
def serving(folder: pathlib.Path, *files: str) -> Iterator[Server]:
    """Serves `folder` on this machine; init_datasets.sh downloads `files`, which are relative to it."""
    with datasets.serving(folder) as address:
        yield Server(folder, address, [folder / name for name in files])


def interrupted(server: Server, raw: pathlib.Path) -> pathlib.Path:
    """Makes a folder of interrupted downloads: a part of the first archive, and a complete text.

    Returns:
      The path of the complete archive on the server.
    """
    raw.mkdir()
    archive = server.files[0]
    (raw / f"{archive.name}.part").write_bytes(archive.read_bytes()[:100])
    (raw / NEWSTEST[0]).write_bytes((server.folder / "test" / NEWSTEST[0]).read_bytes())
    return archive


def assert_completed(server: Server, raw: pathlib.Path, errors: str) -> None:
    """Asserts that the archive of `interrupted` was completed, and that complete files were not downloaded again."""
    assert (raw / server.files[0].name).read_bytes() == server.files[0].read_bytes()
    assert f"downloading {server.address}/test/{NEWSTEST[0]}" not in errors


def texts(folder: pathlib.Path, name: str, source: bytes, target: bytes) -> list[str]:
    """Writes parallel text and returns its paths: NAME.src and NAME.ref in `folder`."""
    paths = folder / f"{name}.src", folder / f"{name}.ref"
    for path, content in zip(paths, (source, target)):
        path.write_bytes(content)
    return [str(path) for path in paths]


def conversion_flags(
    out: pathlib.Path, train: Sequence[str], evaluation: Sequence[str], *more: str
) -> list[str]:
    """Flags of BENCHMARK/convert.py, in two shards by one worker; `train` and `evaluation` as `texts` gives them."""
    return [
        str(out),
        *("--train_source", train[0], "--train_target", train[1]),
        *("--eval_source", evaluation[0], "--eval_target", evaluation[1]),
        *("--shards", "2", "--workers", "1"),
        *more,
    ]


def scoring_here(task: type[Task]) -> type[Task]:
    """A subclass of `task` that scores in this process and keeps the scored translations in `answers`."""

    class Here(task):
        evaluate_in_worker = False

        def quality(self, sums, arrays):
            self.answers = self.translations(arrays)
            return super().quality(sums, arrays)

    return Here


def evaluations(eval_input: Callable, config: RunConfig, folder: pathlib.Path) -> Iterator[list[dict]]:
    """The evaluation batches for one, two and three replicas, after asserting that they count each sentence once."""
    for count, batch in ((1, 4), (2, 2), (3, 4)):
        stepped = one_batch_a_step(config, batch, count)
        shards = [
            list(eval_input(stepped, folder, Shard(i, count), batch).as_numpy_iterator())
            for i in range(count)
        ]
        indices = [x for part in shards for b in part for x, w in zip(b["index"], b["weight"]) if w]
        for part in shards:
            assert all((b["index"] == -1).sum() == (b["weight"] == 0).sum() for b in part)
        assert sorted(indices) == list(range(config.num_eval_examples))
        assert len({len(part) for part in shards}) == 1
        yield from shards


def gathered(sentences: Sequence[Sequence[int]], length: int) -> dict[str, np.ndarray]:
    """The gathered outputs of an evaluation of ten sentences, shuffled; the last two of twelve rows are padding.

    Args:
      sentences: the tokens of the ten sentences.
      length: tokens of a row.
    """
    tokens = np.zeros([12, length], np.int32)
    for row, sentence in zip(tokens, sentences):
        row[: len(sentence)] = sentence
    order = np.random.default_rng(0).permutation(12)
    return {
        "tokens": tokens[order],
        "index": np.r_[0:10, -1, -1][order],
        "weight": np.r_[np.ones(10), 0, 0][order],
    }


def assert_a_lost_sentence_is_refused(task: Task, arrays: dict[str, np.ndarray]) -> None:
    """Asserts an error where one sentence appears twice and another not at all."""
    arrays["index"][arrays["index"] == 0] = 1
    with pytest.raises(ValueError, match="10 translations of 9 sentences, 10 expected"):
        task.quality({}, arrays)
