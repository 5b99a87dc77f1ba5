"""Results and comparisons as tables of the page."""

import math
from collections.abc import Iterator, Sequence

from steelyard.report.data.kinds import METRICS
from steelyard.report.data.results import Results
from steelyard.report.html.page import Table
from steelyard.report.statistics.comparisons import Comparison
from steelyard.report.statistics.verdict import Verdict, probability, ranged
from steelyard.report.tables.cost import Timings
from steelyard.report.tables.paper_tables import LAYOUTS, make_table

_SHOWN = {"table-s2": "Every method", "table-s1": "Training on one domain"}  # S2 has all columns of table 1
_NOTE = (
    "Paired differences, summed over domains, with 95 % intervals over subjects and repeats; p: signed-rank or "
    "bootstrap, the larger, after Holm's correction. GAIN-σ: decrease in spread over repeats, p of a permutation test, "
    "corrected. A step's time is relative to the method it is held against."
)


def result_tables(results: Results) -> Iterator[Table]:
    """Yield the paper's tables, one for each setting."""
    made = {layout.name: make_table(results, layout) for layout in LAYOUTS}
    for name, title in _SHOWN.items():
        table = made[name]
        for setting, rows in table.groups:
            others = tuple(f"{other}:" for other, _ in table.groups if other != setting)
            notes = [note for note in table.notes if not note.startswith(others)]
            yield Table(
                title=f"{title}, {setting}",
                headings=table.headings,
                rows=rows,
                note=" ".join((table.caption, *notes)),
            )


def comparison_tables(verdicts: Sequence[Verdict], timings: Timings) -> Iterator[Table]:
    """Yield what each setting's methods gain, how sure that is, and what a step of them takes."""
    for verdict in verdicts:
        if verdict.comparisons:
            first = verdict.comparisons[0]
            title = METRICS[first.metric]
            yield Table(
                title=f"Gain and cost, {verdict.setting}",
                headings=(
                    *("method", "against", f"{title}, all domains", *(f"{title}, {name}" for name in first.domains)),
                    *("subjects", "runs", "p", "dz", "shown", "GAIN-σ", "p of GAIN-σ", "time of a step"),
                ),
                rows=[_row(one, timings) for one in verdict.comparisons],
                note=_NOTE,
            )


def _row(one: Comparison, timings: Timings) -> list[str]:
    time = timings.ratio(one.setting, one.method, one.against)
    return [
        *(one.method, one.against, ranged(one.total), *map(ranged, one.domains.values())),
        *(str(one.subjects), str(one.pairs), _p(one.p, one.corrected), _number(one.dz, "+.2f"), one.outcome),
        *((ranged(one.spread), _p(one.spread.p, one.spread_corrected)) if one.spread else ("–", "–")),
        f"{time:.2f} ×" if math.isfinite(time) else "–",
    ]


def _p(raw: float, corrected: float) -> str:
    return "–" if math.isnan(raw) else probability(corrected).removeprefix("p ").removeprefix("= ")


def _number(value: float, how: str) -> str:
    return "–" if math.isnan(value) else format(value, how)
