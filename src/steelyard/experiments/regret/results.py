"""The table of results: one row per trial. Trials that are in it are done."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from steelyard.errors import UserError
from steelyard.experiments.regret.trial import SweepScore, Trial, TrialResult
from steelyard.files.atomic import write_text
from steelyard.files.checks import parse_number, parse_whole
from steelyard.files.records import Cells, as_csv, read_rows

RESULTS = "results.csv"
# Tables of earlier versions lack the columns `rate`, `clean_validation` and `sweep`.
_COLUMNS = (
    *("problem", "variant", "optimizer", "steps", "method", "seed"),
    *("score", "validation", "scores", "weights", "shares", "faults", "flags", "seconds"),
)
# Cells with one value per domain have the form `name=value;name=value`.
_BETWEEN, _WITHIN = ";", "="
_AFTER_VALIDATION = "/"  # in the cell of a sweep: name=clean validation/score
_NO_AUDIT = "no audit"


def read_results(path: Path) -> dict[Trial, TrialResult]:
    """Read the results of earlier trials; none if there is no file.

    Raises:
        UserError: The table is damaged.
    """
    results: dict[Trial, TrialResult] = {}
    if not path.exists():
        return results
    for position, row in read_rows(path, _COLUMNS):
        try:
            result = parse_result(row)
        except UserError as error:
            raise UserError(f"{position}: {error}") from error
        results[result.trial] = result
    return results


def write_results(path: Path, results: Mapping[Trial, TrialResult]) -> None:
    """Write all results, in the order of their settings, whatever the order of the work."""
    write_text(path, as_csv([format_result(results[trial]) for trial in sorted(results)]))


def trials_to_do(trials: Iterable[Trial], results: Mapping[Trial, TrialResult]) -> list[Trial]:
    """Return the trials that have no result, each once."""
    return [trial for trial in dict.fromkeys(trials) if trial not in results]


def format_result(result: TrialResult) -> Cells:
    """Return a result as a row of the table."""
    settings = {name: str(value) for name, value in asdict(result.trial).items()}
    settings["rate"] = f"{result.trial.rate:g}"
    return settings | {
        "score": f"{result.score:.6f}",
        "validation": f"{result.validation:.6f}",
        "clean_validation": f"{result.clean_validation:.6f}",
        "scores": _format_numbers(result.scores),
        "weights": _format_numbers(result.weights),
        "shares": _format_numbers(result.shares),
        "faults": _format_pairs(list(result.faults.items())),
        "flags": _format_flags(result.flags),
        "seconds": f"{result.seconds:.2f}",
        "sweep": _format_sweep(result.sweep),
    }


def parse_result(row: Mapping[str, str]) -> TrialResult:
    """Return a result from a row of the table.

    Raises:
        UserError: A cell cannot be read.
    """
    trial = Trial(
        problem=row["problem"],
        variant=row["variant"],
        optimizer=row["optimizer"],
        steps=parse_whole("steps", row["steps"]),
        method=row["method"],
        seed=parse_whole("seed", row["seed"]),
        rate=parse_number("rate", row.get("rate", "1")),
    )
    return TrialResult(
        trial=trial,
        score=parse_number("score", row["score"]),
        validation=parse_number("validation", row["validation"]),
        clean_validation=parse_number("clean_validation", row.get("clean_validation", "")),
        scores=_parse_numbers("scores", row["scores"]),
        weights=_parse_numbers("weights", row["weights"]),
        shares=_parse_numbers("shares", row["shares"]),
        faults=dict(_parse_pairs("faults", row["faults"])),
        flags=_parse_flags(row["flags"]),
        seconds=parse_number("seconds", row["seconds"]),
        sweep=_parse_sweep(row.get("sweep", "")),
    )


def _format_numbers(numbers: Mapping[str, float]) -> str:
    return _format_pairs([(name, f"{number:.6f}") for name, number in numbers.items()])


def _format_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    return _BETWEEN.join(f"{name}{_WITHIN}{value}" for name, value in pairs)


def _format_sweep(members: Mapping[str, SweepScore]) -> str:
    pairs = []
    for name, (validation, score) in members.items():
        pairs.append((name, f"{validation:.5f}{_AFTER_VALIDATION}{score:.5f}"))
    return _format_pairs(pairs)


def _parse_sweep(cell: str) -> dict[str, SweepScore]:
    members = {}
    for name, value in _parse_pairs("sweep", cell):
        validation, _, score = value.partition(_AFTER_VALIDATION)
        members[name] = SweepScore(parse_number("sweep", validation), parse_number("sweep", score))
    return members


def _format_flags(flags: Sequence[tuple[str, str]] | None) -> str:
    if flags is None:
        return _NO_AUDIT
    return _format_pairs(flags)


def _parse_flags(cell: str) -> tuple[tuple[str, str], ...] | None:
    if cell == _NO_AUDIT:
        return None
    return tuple(_parse_pairs("flags", cell))


def _parse_numbers(column: str, cell: str) -> dict[str, float]:
    return {name: parse_number(column, value) for name, value in _parse_pairs(column, cell)}


def _parse_pairs(column: str, cell: str) -> list[tuple[str, str]]:
    pairs = []
    for text in filter(None, cell.split(_BETWEEN)):
        name, separator, value = text.partition(_WITHIN)
        if not separator:
            raise UserError(f"{column} must have the form name=value;name=value; got {text!r}.")
        pairs.append((name, value))
    return pairs
