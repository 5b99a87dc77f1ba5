"""The keys, tables and compressed curves of an experiment's runs."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from steelyard.errors import UserError
from steelyard.experiments.configs import smoke
from steelyard.imaging.runs import experiment_folder
from steelyard.imaging.runs.curves import CURVES, read_curves, write_curves
from steelyard.imaging.runs.experiment_folder import (
    KEYS,
    RUN_PATTERN,
    RunTiming,
    UnitKey,
    read_failures,
    read_timings,
    write_failures,
    write_timings,
)
from steelyard.imaging.runs.method import Method

HEADER = ",".join(KEYS)
TIMING_HEADER = f"{HEADER},steps,seconds_per_step,validation_seconds,evaluation_seconds"


def key(model="unet", availability="all", method="equal", fold=0, repeat=0):
    return UnitKey(model=model, availability=availability, method=Method.parse(method), fold=fold, repeat=repeat)


def test_a_key_survives_a_table_and_a_folder(tmp_path):
    unit = key(model="monai:UNet", availability="8F", method="conservative-25+every-4", fold=3, repeat=2)
    assert UnitKey.parse(unit.row, place="here") == unit
    config = replace(smoke(), model="monai:UNet", method=unit.method, seed=2)
    assert UnitKey.of_run(tmp_path / unit.folder, config) == unit
    assert (tmp_path / unit.folder).match(RUN_PATTERN)
    assert unit.folder == Path("runs/monai_UNet-8F/conservative-25_every-4/fold-3_repeat-2")


def test_the_papers_names_are_the_same_run():
    cells = dict(zip(KEYS, ("unet", "all", "F50-T50", "0", "0"), strict=True))
    assert UnitKey.parse(cells, place="here") == key()
    assert UnitKey.parse(cells | {"method": "mine"}, place="here").method.name == "mine"


def test_a_folder_elsewhere_is_not_a_run_of_an_experiment():
    with pytest.raises(UserError, match="mine: is not a run of an experiment"):
        UnitKey.of_run(Path("mine"), smoke())
    assert experiment_folder.is_run_name("fold-0_repeat-12")
    assert not experiment_folder.is_run_name("fold-0_repeat-1.old")


@pytest.mark.parametrize(
    ("column", "text", "fault"),
    [
        ("model", "", "here: model is empty"),
        ("method", "a\nb", "here: method must be of at most 255 printable characters"),
        ("fold", "-1", "here: fold must be a whole number"),
        ("repeat", "9" * 500, "here: repeat must be a whole number"),
    ],
)
def test_an_impossible_key_is_refused_by_column(column, text, fault):
    with pytest.raises(UserError, match=fault):
        UnitKey.parse(key().row | {column: text}, place="here")


def test_runs_are_sorted_as_the_tables_show_them():
    ordered = [
        key(),
        key(repeat=1),
        key(fold=1),
        key(method="greedy-25"),
        key(availability="12F"),
        key(availability="8F"),
        key(model="lightweight"),
        key(model="monai:UNet"),
    ]
    ordered.reverse()
    assert sorted(ordered, key=lambda unit: unit.order) == ordered[::-1]


def test_timings_survive_their_table(tmp_path):
    timings = {
        key(): RunTiming(steps=4, seconds_per_step=0.5, validation_seconds=0.25, evaluation_seconds=3.0),
        key(fold=1): RunTiming(steps=2, seconds_per_step=0.7, validation_seconds=0.0, evaluation_seconds=1.5),
    }
    path = tmp_path / "timings.csv"
    write_timings(path, timings)
    assert path.read_text().splitlines() == [
        TIMING_HEADER,
        "unet,all,equal,0,0,4,0.5,0.25,3.0",
        "unet,all,equal,1,0,2,0.7,0.0,1.5",
    ]
    assert read_timings(path) == timings


@pytest.mark.parametrize(
    ("times", "fault"),
    [
        (",0.5,0.25,3.0", "steps must be a whole number"),
        ("4,0.5,,3.0", "validation_seconds must be a number of at least 0"),
        ("4,0.5,0.25,", "evaluation_seconds must be a number of at least 0"),
    ],
)
def test_every_time_is_needed(tmp_path, times, fault):
    path = tmp_path / "timings.csv"
    path.write_text(f"{TIMING_HEADER}\nunet,all,equal,0,0,{times}\n")
    with pytest.raises(UserError, match=rf"timings\.csv, line 2: {fault}"):
        read_timings(path)
    path.write_text(f"{HEADER},steps,seconds_per_step,evaluation_seconds\nunet,all,equal,0,0,4,0.5,3.0\n")
    with pytest.raises(UserError, match="must have one column 'validation_seconds'"):
        read_timings(path)


@pytest.mark.parametrize("text", ["1e308", "1e-320", "inf", "9" * 5000, "", "0", "soon"])
def test_times_that_nothing_takes_are_refused(tmp_path, text):
    path = tmp_path / "timings.csv"
    path.write_text(f"{TIMING_HEADER}\nunet,all,equal,0,0,4,{text},0.25,3.0\n")
    with pytest.raises(UserError, match=r"timings\.csv, line 2: seconds_per_step must be a number above 0"):
        read_timings(path)


def test_a_run_that_is_timed_twice_is_refused(tmp_path):
    path = tmp_path / "timings.csv"
    path.write_text(f"{TIMING_HEADER}\nunet,all,equal,0,0,4,1,1,1\nunet,all,F50-T50,0,0,4,1,1,1\n")
    with pytest.raises(UserError, match=r"line 3: unet all equal fold 0 repeat 0 is there twice"):
        read_timings(path)


def test_failures_survive_their_table_and_nonsense_does_not(tmp_path):
    path = tmp_path / "failures.csv"
    failures = {key(fold=1): "no luck", key(): "no light, no sound"}
    write_failures(path, failures)
    assert path.read_text().splitlines()[1] == 'unet,all,equal,0,0,"no light, no sound"'
    assert read_failures(path) == failures
    write_failures(path, {})
    assert not path.exists()
    assert read_failures(path) == {}
    path.write_text(f"{HEADER},message\nunet,all\nunet,all,F50-T50,2,0,late\n")
    assert read_failures(path) == {key(fold=2): "late"}


def row(method, fold, epoch, **cells):
    key = {"model": "unet", "availability": "8F", "method": method, "fold": fold, "repeat": 0, "epoch": epoch}
    return key | cells


ROWS = [
    row("equal", 0, 0, weight_flair=0.5, weight_t1=0.5, validation_flair=0.25),
    row("equal", 0, 1, weight_flair=0.5, weight_t1=0.5, validation_flair=0.125),
    row("equal", 10, 0, weight_flair=0.5, weight_t1=0.5, validation_flair=0.5),
    row("t1-only", 2, 0, weight_t1=1.0, validation_flair=0.75),
]


def test_curves_are_read_as_they_were_written_in_any_order(tmp_path):
    write_curves(tmp_path, reversed(ROWS))
    read = read_curves(tmp_path)
    assert [(cells["method"], cells["fold"], cells["epoch"]) for cells in read] == [
        ("equal", "0", "0"),
        ("equal", "0", "1"),
        ("equal", "10", "0"),
        ("t1-only", "2", "0"),
    ]
    assert [float(cells["validation_flair"]) for cells in read] == [0.25, 0.125, 0.5, 0.75]
    assert read[-1]["weight_flair"] == ""
    content = (tmp_path / CURVES).read_bytes()
    assert content[4:8] == bytes(4)  # no time
    write_curves(tmp_path, ROWS)
    assert (tmp_path / CURVES).read_bytes() == content


def test_without_the_file_there_are_no_curves(tmp_path):
    assert read_curves(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"model,", "cannot be read as compressed CSV"),
        (gzip.compress(b"model,method\n", mtime=0)[:-9], "cannot be read as compressed CSV"),
        (gzip.compress(b"\xff\xfe", mtime=0), "cannot be read as compressed CSV"),
        (gzip.compress(b"model,method\n", mtime=0), "must have one column 'availability'"),
        (
            gzip.compress(b"model,availability,method,fold,repeat,epoch\nunet,8F,equal,0,0\n", mtime=0),
            "line 2: must have 6 cells",
        ),
        (
            gzip.compress(b"model,availability,method,fold,repeat,epoch\nunet,8F,equal,x,0,0\n", mtime=0),
            "line 2: fold must be a whole number",
        ),
    ],
)
def test_damaged_curves_are_named(tmp_path, content, fault):
    (tmp_path / CURVES).write_bytes(content)
    with pytest.raises(UserError, match=rf"curves.csv.gz.*{fault}"):
        read_curves(tmp_path)
