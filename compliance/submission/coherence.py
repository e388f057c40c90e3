"""Holds together what logs, folder names and descriptions say: division, availability, system, organization."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from compliance.findings import ADVICE, ERROR, Finding, finding
from compliance.hints import hidden_characters
from compliance.log.check_log import LogResult
from compliance.log.rules import DIVISIONS
from compliance.submission import rounds

_DIVISION_FROM = (4, 0)
_PLACEHOLDER = re.compile(
    r".*place_?holder.*|<[^<>]*>|\$\{?\w+\}?|(your|my)[-_ ](org|organi[sz]ation|company|system).*|todo|fixme|xxx+",
    re.IGNORECASE,
)


def is_placeholder(name: object) -> bool:
    """Whether a name is what a script should have replaced: "SUBMISSION_ORG_PLACEHOLDER", "<org>", "${ORG}"."""
    return isinstance(name, str) and bool(_PLACEHOLDER.fullmatch(name.strip()[:200]))


def _availability(
    path: Path, description: dict | None, source: Path, group: list[LogResult]
) -> Iterator[Finding]:
    """Reports logs in a cloud of a system on premise, or the reverse. Preview and research say nothing of the place."""
    status = str((description or {}).get("status", "")).casefold()
    place = "cloud" if "cloud" in status else "onprem" if re.search("on-?prem", status) else ""
    logged = sorted({one.status for one in group if one.status in ("cloud", "onprem")})
    if place and logged and logged != [place]:
        expected = f"{place} (systems/{source.name}: {str(description['status'])[:60]})"
        yield finding("tree.status", ADVICE, path, expected, " and ".join(logged))


def of_folder(
    path: Path, system: str, description: dict | None, source: Path, group: list[LogResult], ruleset: str
) -> Iterator[Finding]:
    """Holds a folder of runs together: its name, its logs, and the description of its system, in the file `source`."""
    for key in ("org", "platform", "status"):
        if placeholders := sorted({value for one in group if is_placeholder(value := getattr(one, key))}):
            about = f"submission_{key}: a name", ", ".join(placeholders)[:120]
            yield finding("tree.placeholder", ADVICE, path, *about)
    yield from _availability(path, description, source, group)
    if description is not None:
        division = description.get("division")
        logged = sorted({result.division for result in group if isinstance(result.division, str)})
        # A word that is not a division ("close", "Closed") is a system.field finding, not another division.
        if division in DIVISIONS and logged and logged != [division]:
            # Rounds 2.1 to 3.1 published logs that obey the closed rules as open entries.
            published = rounds.number(ruleset) < _DIVISION_FROM and (division, logged) == ("open", ["closed"])
            severity = ADVICE if published else ERROR
            expected, actual = f"{division} (systems/{source.name})", " and ".join(logged)
            yield finding("tree.division", severity, path, expected, actual, wording="tree.division.system")
    names = [system]
    if description is not None and isinstance(description.get("system_name"), str):
        names.append(description["system_name"])
        if compare(names[1], system) == "other":
            yield finding("tree.system", ADVICE, source, system, names[1], wording="tree.system.file")
    for platform in sorted({one.platform for one in group if isinstance(one.platform, str)}):
        if is_placeholder(platform):
            continue
        verdicts = {compare(platform, name) for name in names}
        if "same" in verdicts:
            continue
        certain = "other" in verdicts or (len(names) == 2 and " " not in platform.strip())
        rule = "tree.system" if certain else "tree.system-unclear"
        yield finding(rule, ADVICE, path, " or ".join(dict.fromkeys(names)), platform[:80])


_NODES = re.compile(r"^\s*\d+\s*x\s*(?=\w)", re.IGNORECASE)


def compare(name: str, other: str) -> str:
    """Compares two system names: returns "same", "other" or "unclear".

    "same": one name begins like the other or contains it. "other": the same words with different numbers. A leading
    count of nodes ("1xDGX-1") is ignored.
    """
    if bool(_NODES.match(name)) != bool(_NODES.match(other)):
        name, other = _NODES.sub("", name), _NODES.sub("", other)
    # "NVIDIA DGX-1" without the manufacturer is in "dgx1_mxnet".
    if any(_holds(a, b) or _holds(a, b.partition(" ")[2]) for a, b in ((name, other), (other, name))):
        return "same"
    ours, theirs = _parts(name), _parts(other)
    if _begin_alike(ours, theirs):
        return "same"
    words = ([part for part in parts if part.isalpha()] for parts in (ours, theirs))
    return "other" if _begin_alike(*words) else "unclear"


def _begin_alike(ours: list[str], theirs: list[str]) -> bool:
    return bool(ours and theirs) and all(a == b for a, b in zip(ours, theirs))


def _holds(name: str, part: str) -> bool:
    """Whether `name` contains `part`, ignoring case and punctuation; cut numbers and very short parts do not count."""
    outer, inner = (re.sub(r"[^a-z\d]", "", text.lower()[:200]) for text in (name, part))
    return len(inner) > 3 and bool(re.search(rf"(?<!\d){inner}(?!\d)", outer))


def _parts(name: str) -> list[str]:
    """ "TPU v3-32" -> ["tpuv", "3", "32"]."""
    return re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])[^a-z\d]+(?=[a-z])", "", name.lower()[:200]))


def organizations(org: Path, logged: Iterable[object], submitters: Iterable[object]) -> Iterator[Finding]:
    """Yields advice where logs or descriptions name another organization than their folder, once for each source.

    Args:
      logged: submission_org of each log.
      submitters: `submitter` of each description.
    """
    sources = {"submission_org of the logs": logged, "submitter of the descriptions": submitters}
    for source, values in sources.items():
        names = sorted({value for value in values if isinstance(value, str) and value})
        others = [one for one in names if not same_organization(one, org.name) and not is_placeholder(one)]
        if others:
            actual = f"{', '.join(value[:60] for value in others[:5])} ({source})"
            yield finding("tree.organization", ADVICE, org, org.name, actual)


def hidden_names(org: Path, systems: Iterable[str], descriptions: Iterable[dict]) -> Iterator[Finding]:
    """Yields advice about folders and descriptions whose names have characters that no reader sees."""
    places = [(org, org.name), *((org / "results" / name, name) for name in systems)]
    for content in descriptions:
        for field in ("submitter", "system_name"):
            if isinstance(content.get(field), str):
                places.append((org / "systems", content[field]))
    for path, name in places:
        if characters := hidden_characters(name):
            yield finding("name.hidden", ADVICE, path, "characters that a reader can see", characters)


# Words for the legal form of a company.
_COMPANY_FORMS = frozenset(
    ("corporation", "corp", "inc", "incorporated", "ltd", "limited", "llc", "gmbh", "co", "company", "ag", "plc")
)  # fmt: skip
_SHORTEST_NAME = 3  # letters of a name that another one begins with


def same_organization(name: str, other: str) -> bool:
    """Whether two names are of one organization: alike but for case, punctuation, legal form, or further words.

    "Quanta" is "Quanta Cloud", and no part of a word counts: "Goo" is not "Google". Initials count as the name: "QCT"
    is "Quanta_Cloud_Technology". The order of partners does not count. mlcommons/policies, submission_rules.adoc,
    "Directory structure", asks for the name in three places and says of none how it is spelled.
    """
    if "+" in name and "+" in other:
        ours, theirs = (
            {"".join(_organization_words(one)) for one in both.split("+")} for both in (name, other)
        )
        return ours == theirs
    shorter, longer = sorted(map(_organization_words, (name, other)), key=lambda words: len("".join(words)))
    short = "".join(shorter)
    begins = {"".join(longer[:count]) for count in range(1, len(longer))}
    if short == "".join(longer) or (len(short) >= _SHORTEST_NAME and short in begins):
        return True
    initials = ("".join(word[0] for word in words) for words in (shorter, longer) if len(words) > 1)
    return len(short) > 1 and short in initials


def _organization_words(name: str) -> list[str]:
    words = re.findall(r"[^\W_]+", name[:200].casefold())
    return [word for word in words if word not in _COMPANY_FORMS] or words
