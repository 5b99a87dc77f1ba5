"""What runs were set to, and what they ran on."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from steelyard.files.records import read_object
from steelyard.imaging.runs.run_folder import ENVIRONMENT
from steelyard.report.data.runs import RunRecord
from steelyard.report.html.page import Table


def configuration_tables(runs: Sequence[RunRecord]) -> list[Table]:
    """Return the settings of all runs, the versions they ran on, and a list of the runs."""
    settings = [_flat(run.config.as_dict()) for run in runs]
    # An old run, or one that was stripped before it was sent, has none: nothing depends on it.
    environments = [_flat(read_object(run.path / ENVIRONMENT)) for run in runs]
    tables = [
        Table(title="Settings", headings=["setting", "value"], rows=_rows(settings)),
        Table(title="Versions", headings=["what", "value"], rows=_rows(environments)),
        Table(
            title="Runs",
            headings=["run", "epochs", "steps", "test subjects"],
            rows=[
                ["/".join(run.path.parts[-3:]), str(len(run.epochs)), str(run.steps.count), ", ".join(run.subjects)]
                for run in runs
            ],
        ),
    ]
    return [table for table in tables if table.rows]


def _flat(held: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as one level, with dots between."""
    flat: dict[str, str] = {}
    for name, value in held.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return flat


def _rows(held: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Return each setting once, with every value that some run has for it."""
    names = dict.fromkeys(name for one in held for name in one)
    return [[name, "; ".join(dict.fromkeys(one[name] for one in held if name in one))] for name in names]
