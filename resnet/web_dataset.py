"""Lists the pictures of a WebDataset: tar files in which the members KEY.EXTENSION of one key are one example.

Pictures are read where they lie in the tar file; nothing is unpacked. The format is the webdataset library's: a
key is a member's path up to the first dot of its file name. `KEY.cls` holds the class, or `KEY.json` has a field of it.
"""

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.data import folder_conversion, pictures, split_names, text_files
from common.data.report import Report
from common.errors import UserError
from common.untrusted import parsed
from resnet.images import Item, members

FIELDS = ("cls", "label", "class", "category")  # Of a class in KEY.json; the first that is there counts.
_MOST_LABEL = 1 << 20  # Bytes of a member with a class.


def shards(folder: Path) -> list[Path]:
    """Returns the tar files of a folder without folders of classes, in the order of their names.

    Raises UserError if its shards are compressed, or Parquet, which are not read.
    """
    if folder_conversion.folders(folder):
        return []
    visible = [path for path in sorted(folder.iterdir()) if folder_conversion.visible(path.name)]
    for path in visible:
        if path.name.endswith((".tar.gz", ".tgz", ".tar.xz", ".tar.zst")):
            fix = "uncompress it to a .tar file, with gunzip or the like"
            raise UserError(f"{path}: a compressed tar file; {fix}")
        if path.suffix == ".parquet":
            fix = "save its pictures as files, with metadata.csv of file_name,label"
            raise UserError(f"{path}: Parquet, which is not read; {fix}")
    return [path for path in visible if path.suffix == ".tar" and path.is_file()]


def split(found: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Returns the shards to train and to evaluate on by the split's word of their names, such as train-0000.tar."""
    parts: tuple[list[Path], list[Path]] = [], []
    for path in found:
        parts[split_names.part_of(split_names.word_of(path.name)) or 0].append(path)
    return parts


def items(shards: Sequence[Path], report: Report) -> list[Item]:
    """Returns the pictures of shards. Raises UserError if a tar file is damaged, or none holds a picture with a class.

    Args:
      shards: tar files.
      report: receives the examples without a picture or a class, and further pictures of an example.
    """
    pictures = [item for path in shards for item in _in_shard(path, report)]
    if not pictures:
        fix = "expected members such as KEY.jpg and KEY.cls"
        raise UserError(f"{shards[0]}: no example with a picture and a class; {fix}")
    return pictures


def _in_shard(path: Path, report: Report) -> Iterator[Item]:
    examples: dict[str, dict[str, tarfile.TarInfo]] = {}
    for member in members(path):
        folder, _, name = member.name.rpartition("/")
        key, _, extension = name.partition(".")
        if key and folder_conversion.visible(name):
            by_extension = examples.setdefault(f"{folder}/{key}".lstrip("/"), {})
            if extension.lower() in by_extension:
                report.leave_out(
                    "a member that is there twice; the later one is read", f"{path}/{member.name}"
                )
            by_extension[extension.lower()] = member
    for key, by_extension in examples.items():
        place = f"{path}/{key}"
        images = [
            member for extension, member in by_extension.items() if f".{extension}" in pictures.SUFFIXES
        ]
        if not images:
            report.skip(
                f"an example without a picture ({', '.join(sorted(by_extension))[:40]})", place, lost=True
            )
            continue
        for other in images[1:]:
            report.skip("another picture of the same example", f"{path}/{other.name}")
        label = _label(path, by_extension)
        if not label:
            report.leave_out(
                "no class",
                place,
                f"{place}: no class: neither KEY.cls nor KEY.json has one ({', '.join(by_extension)[:60]})",
            )
        elif images[0].size > pictures.MOST_BYTES:
            report.leave_out("no whole picture", place, f"{place}: a file of {images[0].size} bytes")
        else:
            yield _item(path, images[0], label)


def _item(path: Path, member: tarfile.TarInfo, label: str = "") -> Item:
    return Item(str(path), member.offset_data, member.size, label, member.name, upright=True)


def _label(path: Path, parts: dict[str, tarfile.TarInfo]) -> str:
    """Returns an example's class in its one spelling; "" if no member has one."""
    for extension in ("cls", "json"):
        member = parts.get(extension)
        if member is None or member.size > _MOST_LABEL:
            continue
        data = _item(path, member).read()
        try:
            given = data.decode("utf-8-sig") if extension == "cls" else _field(parsed(data))
        except ValueError:  # No UTF-8, or no JSON.
            continue
        if isinstance(given, str | int) and not isinstance(given, bool) and text_files.normal(str(given)):
            return text_files.normal(str(given))
    return ""


def _field(content: object) -> object:
    if not isinstance(content, dict):
        return None
    return next((content[name] for name in FIELDS if name in content), None)
