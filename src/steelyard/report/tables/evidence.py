"""All tables, comparisons and verdicts of results, as files."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from steelyard.files.atomic import remove, write_bytes
from steelyard.report.data.notation import NOTATIONS
from steelyard.report.data.results import Results
from steelyard.report.statistics.bootstrap import Estimate
from steelyard.report.statistics.comparisons import Comparison, Settings
from steelyard.report.statistics.verdict import Verdict, judge
from steelyard.report.tables.paper_tables import LAYOUTS, make_table
from steelyard.report.tables.summary import summarise, summary_csv


def write_evidence(results: Results, folder: Path, *, settings: Settings | None = None) -> list[Path]:
    """Write what results show; the same results give the same bytes.

    Args:
        results: All rows.
        folder: Where to write.
        settings: What is compared, and how.

    Returns:
        The files of `write_tables` and `write_verdicts`.

    Raises:
        UserError: There is no baseline to compare with (the tables are then written), or the folder cannot be written.
    """
    written = write_tables(results, folder, baseline=settings.baseline if settings else None)
    return sorted([*written, *write_verdicts(judge(results, settings), folder)])


def write_tables(results: Results, folder: Path, *, baseline: str | None = None) -> list[Path]:
    """Write `table-1`, `table-s1` and `table-s2` as .txt, .csv, .md and .tex, and `summary.csv` with their numbers.

    Tables without rows are left out. Without a baseline they lack the gains alone.
    """
    texts = {"summary.csv": summary_csv(summarise(results, baseline=baseline))}
    for table in (make_table(results, layout, baseline=baseline) for layout in LAYOUTS):
        if table.groups:
            texts |= {f"{table.name}.{suffix}": write(table) for suffix, write in NOTATIONS.items()}
    return _write(folder, texts)


def write_verdicts(verdicts: Sequence[Verdict], folder: Path) -> list[Path]:
    """Write `comparisons.csv` and `verdict.txt`; without any verdict, take away what an earlier call has written."""
    if not verdicts:
        for name in ("comparisons.csv", "verdict.txt"):
            remove(folder / name)
        return []
    comparisons = [one for verdict in verdicts for one in verdict.comparisons]
    return _write(folder, {"comparisons.csv": comparisons_csv(comparisons), "verdict.txt": verdict_text(verdicts)})


def _write(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    for name, text in sorted(texts.items()):
        write_bytes(folder / name, text.encode())
    return [folder / name for name in sorted(texts)]


def verdict_text(verdicts: Sequence[Verdict]) -> str:
    """Return the answers, each followed by its comparisons."""
    parts = ["\n".join([verdict.overall, *(f"- {sentence}" for sentence in verdict.sentences)]) for verdict in verdicts]
    return "\n\n".join(parts) + "\n"


def comparisons_csv(comparisons: Sequence[Comparison]) -> str:
    """Return the numbers of comparisons as CSV, to six significant digits; what is not known is empty."""
    domains = list(dict.fromkeys(name for one in comparisons for name in one.domains))
    nothing = Estimate(value=math.nan, low=math.nan, high=math.nan, p=math.nan)
    rows = []
    for one in comparisons:
        row: dict[str, object] = {"model": one.setting.model, "availability": one.setting.availability}
        row |= {name: getattr(one, name) for name in ("metric", "method", "against", "subjects", "folds", "pairs")}
        row |= _columns("total", one.total)
        for domain in domains:
            row |= _columns(domain, one.domains.get(domain, nothing))
        row |= {"signed_rank_p": one.ranks.p, "p": one.p, "family": one.family, "corrected_p": one.corrected}
        row |= {"rank_biserial": one.ranks.rank_biserial, "dz": one.dz, "outcome": one.outcome}
        row |= _columns("gain_sd", one.spread or nothing)
        row |= {"gain_sd_corrected_p": one.spread_corrected, "gain_sd_outcome": one.spread_outcome}
        rows.append({name: _written(value) for name, value in row.items()})
    written = io.StringIO()
    if rows:
        writer = csv.DictWriter(written, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return written.getvalue()


def _columns(name: str, found: Estimate) -> dict[str, object]:
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high, f"{name}_p": found.p}


def _written(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return str(value)
