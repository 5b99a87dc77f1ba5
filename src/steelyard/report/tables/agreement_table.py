"""What cheaper votes lose, as tables."""

import math
from collections.abc import Mapping, Sequence

from steelyard.errors import one_line
from steelyard.report.data.kinds import column_suffixes
from steelyard.report.statistics.agreement import Row


def as_json(rows: Sequence[Row]) -> list[dict[str, str | int | float | None]]:
    """Return the rows as JSON holds them: what is not known is null."""
    return [{name: None if _unknown(value) else value for name, value in row.items()} for row in rows]


def as_markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """Return a table per setting, from rows or from what JSON held of them."""
    settings = dict.fromkeys((row["model"], row["availability"]) for row in rows)
    groups = [[row for row in rows if (row["model"], row["availability"]) == one] for one in settings]
    return "\n".join(_table(group) for group in groups)


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    first = rows[0]
    named = [name.removeprefix("dsc_") for name in first if name.startswith("dsc_") and not name.endswith(_ENDS)]
    columns = {
        "share": ("same vote", ".3f"),
        "kappa": ("κ", ".3f"),
        "held": ("same vote, held over", ".3f"),
        "correlation": ("r of H differences", ".3f"),
        "curve_correlation": ("r of λ", ".3f"),
        "curve_difference": ("mean abs. Δλ", ".3f"),
    } | {f"dsc_{name}": (f"ΔDSC-{suffix}", "+.3f") for name, suffix in column_suffixes(tuple(named)).items()}
    titles = ["method", *(title for title, _ in columns.values()), "time of a step"]
    lines = [
        f"### {first['model']} ({first['availability']}), against {first['exact']}",
        "",
        f"| {' | '.join(titles)} |",
        f"| --- |{' ---: |' * (len(titles) - 1)}",
    ]
    for row in rows:
        cells = [_cell(row, name, form) for name, (_, form) in columns.items()]
        time = "–" if _unknown(row["time_ratio"]) else f"{row['time_ratio']:.2f}×"
        lines.append(f"| {row['method']} | {' | '.join(cells)} | {time} |")
    return "\n".join([*map(one_line, lines), "", _basis(rows), ""])


_ENDS = ("_low", "_high")


def _cell(row: Mapping[str, object], name: str, form: str) -> str:
    if _unknown(row[name]):
        return "–"
    value, low, high = (row[key] for key in (name, f"{name}_low", f"{name}_high"))
    return f"{value:{form}}" if _unknown(low) else f"{value:{form}} [{low:{form}}, {high:{form}}]"


def _basis(rows: Sequence[Mapping[str, object]]) -> str:
    """Say what the numbers rest on."""
    parts = []
    for name, what in (
        ("traced", "retraced runs"),
        ("to_the_bit", "of them the same to the bit"),
        ("steps", "steps with both votes"),
        ("pairs", "pairs of runs"),
        ("subjects", "test subjects"),
    ):
        numbers = sorted({int(str(row[name])) for row in rows})
        parts.append(f"{'–'.join(dict.fromkeys(map(str, (numbers[0], numbers[-1]))))} {what}")
    return f"{', '.join(parts)}; 95 % confidence intervals."


def _unknown(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
