"""Compares the names of an organisation: the submitter's folder, the logs, the system's description, --org.

mlcommons/policies, submission_rules.adoc, "Directory structure": the folder is <submitting_organization>; the table of
fields asks for `submitter`. Logs say submission_org. No rule says that the three are spelled alike, so "Inventec" and
"Inventec Corporation" are one organisation here.
"""

import re

# Words for the legal form of a company.
_FORMS = frozenset(
    (
        "corporation",
        "corp",
        "inc",
        "incorporated",
        "ltd",
        "limited",
        "llc",
        "gmbh",
        "co",
        "company",
        "ag",
        "plc",
    )
)
_SHORTEST = 3  # letters of a name that another one begins with


def same(name: str, other: str) -> bool:
    """Whether two names are of one organisation: alike but for case, punctuation, legal form, or further words.

    "Quanta" is "Quanta Cloud", and no part of a word counts: "Goo" is not "Google". Initials count as the name: "QCT"
    is "Quanta_Cloud_Technology". The order of partners does not count.
    """
    if "+" in name and "+" in other:
        return {"".join(_words(one)) for one in name.split("+")} == {
            "".join(_words(one)) for one in other.split("+")
        }
    ours, theirs = _words(name), _words(other)
    (short, _), (long, words) = sorted(
        (("".join(ours), ours), ("".join(theirs), theirs)), key=lambda one: len(one[0])
    )
    begins = {"".join(words[:count]) for count in range(1, len(words))}
    if short == long or (len(short) >= _SHORTEST and short in begins):
        return True
    initials = ("".join(word[0] for word in words) for words in (ours, theirs) if len(words) > 1)
    return len(short) > 1 and short in initials


def _words(name: str) -> list[str]:
    words = re.findall(r"[^\W_]+", name[:200].casefold())
    return [word for word in words if word not in _FORMS] or words
