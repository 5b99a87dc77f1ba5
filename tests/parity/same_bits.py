"""Do two revisions compute the same numbers? The same small experiment is run with both, and compared exactly.

    python tests/parity/same_bits.py REVISION        (or: make same-bits BASE=REVISION)

The working tree is compared with the revision. It takes a minute or two. Exit codes:

    0   every number is the same
    1   some differ; the first of them are printed (expected after a change that is meant to alter the arithmetic)
    2   one of the two experiments failed
"""

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
SUBJECTS = 5
# The paper's names, which every revision reads, and the names that newer revisions write.
METHODS = {
    "F50-T50": "equal",
    "Ours-G-25": "greedy-25",
    "Ours-C-25": "conservative-25",
    "Simple-C": "shift-conservative",
}
SETTINGS = ("--availability", "all", "--set", "epochs=6")
KEYS = ("model", "availability", "method", "fold", "repeat", "subject", "domain")
"""Columns of results.csv that name a row; its order may change."""
TABLES = ("results.csv", "epochs.csv", "steps.csv")
MOST_SHOWN = 5
"""Differences that are printed per kind of file."""


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A folder with the files of a revision."""
    with TemporaryDirectory(prefix="same-bits-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "-q", "--detach", tree, revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)


def write_cohort(folder: Path) -> None:
    """Write the small heads that both revisions train on."""
    sys.path.insert(0, str(ROOT / "tests"))
    import heads

    for number in range(SUBJECTS):
        heads.write_subject(folder, f"{number}", seed=number)


def run_experiment(source: Path, data: Path, out: Path) -> None:
    """Run the experiment with the package in `source`; anything but success ends this script with exit code 2."""
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    ask_for_path = [sys.executable, "-c", "import steelyard; print(steelyard.__file__)"]
    imported = subprocess.run(
        ask_for_path, env=environment, cwd=data, capture_output=True, text=True, check=True
    ).stdout
    if not imported.startswith(str(source)):
        sys.exit(f"{imported.strip()} would be run instead of {source}")
    command = ["experiment", "smoke", data, out, "--methods", *METHODS, *SETTINGS]
    run = [sys.executable, "-m", "steelyard", *command]
    result = subprocess.run(run, env=environment, cwd=data, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.stderr.write(f"{source}: the experiment failed:\n{result.stderr[-2000:]}\n")
        sys.exit(2)


def read_tables(experiment: Path, name: str) -> dict[str, list[dict[str, str]]]:
    """Read every file of this name, by its path in the experiment; methods have their new names."""
    tables = {}
    for path in sorted(experiment.rglob(name)):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            if "method" in row:
                row["method"] = METHODS.get(row["method"], row["method"])
        parts = [METHODS.get(part, part) for part in path.relative_to(experiment).parts]
        rows.sort(key=lambda row: [row.get(column, "") for column in KEYS])  # a stable sort: steps keep their order
        tables["/".join(parts)] = rows
    return tables


def differences(before: Path, after: Path, name: str) -> tuple[int, list[str]]:
    """Compare the files of one kind; return how many values were compared, and where they differ."""
    old_tables, new_tables = read_tables(before, name), read_tables(after, name)
    places = [f"{path} is only in one of both" for path in sorted(old_tables.keys() ^ new_tables.keys())]
    compared = 0
    for path in sorted(old_tables.keys() & new_tables.keys()):
        old_rows, new_rows = old_tables[path], new_tables[path]
        if len(old_rows) != len(new_rows):
            places.append(f"{path} had {len(old_rows)} rows and has {len(new_rows)}")
            continue
        for number, (old, new) in enumerate(zip(old_rows, new_rows, strict=True)):
            compared += len(old)
            changed = [column for column in old if old[column] != new.get(column)]
            places += [f"{path}, row {number}, {c}: was {old[c]}, is {new.get(c)}" for c in changed]
    return compared, places


def main(revision: str) -> int:
    """Run both, compare, print one line per kind of file."""
    with checked_out(revision) as tree, TemporaryDirectory(prefix="same-bits-") as folder:
        data, before, after = (Path(folder) / name for name in ("data", "before", "after"))
        write_cohort(data)
        run_experiment(tree / "src", data, before)
        run_experiment(ROOT / "src", data, after)
        is_same = True
        for name in TABLES:
            compared, places = differences(before, after, name)
            is_same = is_same and compared > 0 and not places
            sys.stdout.write(f"{name}: {compared} values compared, {len(places)} differences\n")
            for difference in places[:MOST_SHOWN]:
                sys.stdout.write(f"  {difference}\n")
    return 0 if is_same else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/parity/same_bits.py REVISION")
    sys.exit(main(sys.argv[1]))
