"""The campaign from the command line: `make fuzz`, or `python -m fuzz --help` with `tests` on the path."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from fuzz import headers, kills, library, records
from fuzz.material import Bench, Material
from fuzz.nursery import Nursery
from fuzz.tally import MARK, Budget, Tally, as_markdown
from steelyard.files.marked_page import with_measured

CASES = {"headers": 3000, "records": 560, "kills": 72, "library": 2000}
"""How many cases of each part make a whole campaign."""

_PARTS: dict[str, Callable[[int, int, Bench], Tally]] = {
    "headers": headers.run,
    "records": records.run,
    "kills": kills.run,
}
_CASE = {"headers": headers.run_one, "records": records.run_case, "kills": kills.run_case}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign and return 1 if anything was found."""
    options = _read(arguments)
    parts = options.only or list(CASES)
    tallies = []
    for part in parts:
        tally = run_part(part, seed=options.seed, cases=options.cases, minutes=options.minutes, case=options.case)
        tallies.append(tally)
        show(tally)
    if options.out is not None:
        write(options.out, options.seed, tallies)
    if options.page is not None:
        counts = json.loads(options.out.read_text())
        options.page.write_text(with_measured(options.page.read_text(), MARK, f"\n{as_markdown(counts)}"))
    findings = sum(len(tally.findings) for tally in tallies)
    sys.stdout.write(f"{sum(tally.cases for tally in tallies)} cases, {findings} findings\n")
    return 1 if findings else 0


def _read(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    parser.add_argument("--minutes", type=float, help="of each part; a whole campaign without")
    parser.add_argument("--cases", type=int, help="of each part; a whole campaign's without")
    parser.add_argument("--only", action="append", choices=list(CASES), help="only this part; may be repeated")
    parser.add_argument("--case", type=int, help="only this case, to reproduce a finding")
    parser.add_argument("--out", type=Path, help="a JSON file for the counts; parts that are not run keep theirs")
    parser.add_argument("--page", type=Path, help="a Markdown page to write the counts of --out into")
    options = parser.parse_args(arguments)
    if options.page is not None and options.out is None:
        parser.error("--page needs --out")
    return options


def run_part(part: str, *, seed: int, cases: int | None, minutes: float | None, case: int | None = None) -> Tally:
    """Run one part of the campaign.

    Args:
        part: Its name.
        seed: Of everything that is drawn.
        cases: How many; a whole campaign's if not given.
        minutes: No case is begun after so many.
        case: Run only this one.
    """
    number = CASES[part] if cases is None else cases
    budget = Budget(None if minutes is None else 60 * minutes)
    if part == "library":
        return _library(seed, range(number) if case is None else range(case, case + 1), budget)
    with TemporaryDirectory(prefix="steelyard-fuzz-") as folder, Nursery() as nursery:
        root, scratch = Path(folder, "material"), Path(folder, "scratch")
        root.mkdir()
        scratch.mkdir()
        bench = Bench(nursery=nursery, material=Material(root, nursery), scratch=scratch, budget=budget)
        if case is None:
            return _PARTS[part](seed, number, bench)
        tally = Tally(part, seed)
        _CASE[part](tally, case, bench)
        return tally


def _library(seed: int, cases: range, budget: Budget) -> Tally:
    """Run cases of the library in this process: they cannot harm it."""
    tally = Tally("library", seed)
    for case in cases:
        if budget.over:
            break
        drawn, faults, kind = library.run_case(seed, case)
        tally.add(case, kind, sorted(set(faults)), repr(drawn))
    tally.seconds = budget.spent
    return tally


def show(tally: Tally) -> None:
    """Print the counts and the findings of a part."""
    for finding in tally.findings:
        sys.stdout.write(str(finding).encode("ascii", "backslashreplace").decode() + "\n")
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(tally.counts.items()))
    sys.stdout.write(
        f"{tally.part}: {tally.cases} cases, {len(tally.findings)} findings, {tally.seconds:.0f} s ({kinds})\n"
    )
    sys.stdout.flush()


def write(path: Path, seed: int, tallies: Sequence[Tally]) -> None:
    """Write the counts as JSON; parts that were not run keep what the file says of them."""
    earlier = json.loads(path.read_text()) if path.exists() else {}
    parts = earlier.get("parts", {}) | {tally.part: tally.as_json() for tally in tallies}
    path.write_text(json.dumps({"seed": seed, "parts": dict(sorted(parts.items()))}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
