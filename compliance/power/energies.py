"""Computes the energy of a folder's runs and its score, by the rules and by the stock tool."""

from contextlib import suppress
from dataclasses import dataclass

from compliance.power import checks, power_logs
from compliance.submission import tree_system
from compliance.submission.scores import ScoreCard
from compliance.submission.tree_files import place_of


@dataclass(frozen=True)
class Energies:
    """One folder of runs: energies in joules by run, None where unknown; the two scores."""

    by_rules: tuple[float | None, ...]
    by_stock: tuple[float | None, ...]
    score: float | None
    stock_score: float | None
    remarks: tuple[str, ...]

    @property
    def line(self) -> str:
        """Returns both scores in kilojoules, and what is remarkable of the power logs."""
        words = ("-" if one is None else f"{one / 1000:,.1f}" for one in (self.score, self.stock_score))
        return "; ".join(("energy {} kJ by the rules, {} kJ by the stock tool".format(*words), *self.remarks))


def energies(card: ScoreCard) -> Energies:
    """Computes the energies of a folder of runs with power logs from its score card; see `power_logs.kind`.

    Raises UserError: a power log cannot be read.
    """
    folder = card.path
    runs = [power_logs.of_run(one, folder) for one in card.runs]
    by_rules = tuple(one.joules() for one in runs)
    if power_logs.kind(folder) == power_logs.IN_BAND:
        by_stock: tuple[float | None, ...] = (None,) * len(runs)
        remarks = ["informative: sensors of one host, in band; no part of a submission"]
    else:
        by_stock = tuple(one.stock_joules() for one in runs)
        remarks = _remarks(card)
    means = [power_logs.olympic(joules, card.left_out) for joules in (by_rules, by_stock)]
    scaled = [None if None in (card.score, mean) else mean * card.scaling for mean in means]
    return Energies(by_rules, by_stock, *scaled, tuple(remarks))


def _remarks(card: ScoreCard) -> list[str]:
    folder, logs = card.path, [str(one.path) for one in card.runs]
    bad = checks.bad_names(folder, logs)
    refused = "the stock checker refuses the names of the power logs"
    remarks = [f"{refused} of {len(bad)} of {len(logs)} runs"] if bad else []
    place, described = place_of(folder.resolve()), None
    if place:
        with suppress(OSError, ValueError):
            described = tree_system.load(place[0] / "systems" / f"{place[1]}.json")
    return remarks + [f"{one.message} {one.found}" for one in checks.check(folder, card.runs, described)]
