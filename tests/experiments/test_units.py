from dataclasses import replace
from pathlib import Path

import pytest
import torch

from steelyard.errors import UserError
from steelyard.experiments.estimate import Forecast, add_timing, step_kind
from steelyard.experiments.executor import UnitReport, run_units
from steelyard.experiments.grids import paper, smoke
from steelyard.experiments.results import units_to_do, update_failures, write_results
from steelyard.experiments.units import Timing, plan
from steelyard.files.records import as_csv
from steelyard.imaging.runs.experiment_folder import RunTiming, read_timings
from steelyard.imaging.train.data import LabelledSlices
from steelyard.imaging.train.sampling import DomainSlices

TIMING = Timing(epochs=2, steps=4, training=2.0, validation=0.5, evaluation=1.0)


def invented(subjects, *, domains=("flair", "t1"), each=3):
    """Slices of nothing, of as many subjects as wanted."""
    names = [f"sub-{number:02d}" for number in range(subjects)]
    owners = tuple(name for name in names for _ in range(each))
    images = torch.zeros(len(owners), 1, 16, 16)
    held = {name: DomainSlices(images, images, owners) for name in domains}
    return LabelledSlices(held, dict.fromkeys(names, "digest"))


def planned(grid, subjects=20):
    slices = invented(subjects)
    return plan(grid, slices, data=Path("data"), out=Path("out")), slices


def test_methods_of_one_fold_and_repeat_share_split_and_seed():
    units, _ = planned(paper())
    for fold in range(5):
        for availability in ("all", "8F"):
            held = [u for u in units if u.fold == fold and u.availability == availability]
            assert len({str(u.split) for u in held}) == 1
            assert {u.config.seed for u in held} == set(range(5))
    assert len({u.path for u in units}) == len(units) == 950


def test_nobody_is_on_two_sides_and_everybody_is_tested_once():
    units, slices = planned(paper())
    splits = {u.fold: u.split for u in units}
    assert sorted(name for split in splits.values() for name in split.test) == sorted(slices.subjects)
    for split in splits.values():
        sides = [set(split.train), set(split.validate), set(split.test)]
        assert [len(side) for side in sides] == [12, 4, 4]
        assert len(set.union(*sides)) == 20


def test_8f_trains_on_the_flair_of_eight_and_the_t1_of_all():
    units, slices = planned(paper())
    chosen = set()
    for unit in (u for u in units if u.availability == "8F"):
        pool = slices.part(unit.split, "train", ("flair", "t1"))
        flair = frozenset(pool["flair"].owners)
        assert len(flair) == 8
        assert flair < set(pool["t1"].owners) == set(unit.split.train)
        judged = slices.part(unit.split, "validate", ("flair", "t1"))
        assert set(judged["flair"].owners) == set(unit.split.validate)
        chosen.add((unit.fold, flair))
    assert len(chosen) == 5
    full = next(u for u in units if u.availability == "all")
    assert set(slices.part(full.split, "train", ("flair",))["flair"].owners) == set(full.split.train)


def test_scarcity_that_the_data_do_not_have_is_refused():
    with pytest.raises(UserError, match=r"availability 8F, fold 0: 8 of the training subjects .* fewer than the 5"):
        planned(paper(), subjects=9)


class FailingExecutor:
    """An executor whose units fail a set number of times."""

    size = 2

    def __init__(self, failures):
        self.failures, self.busy, self.submitted = failures, [], []

    def submit(self, unit):
        self.busy.append(unit)
        self.submitted.append(unit)

    def poll(self, seconds):
        unit = self.busy.pop(0)
        left = self.failures.get(unit.path, 0)
        self.failures[unit.path] = left - 1
        return [UnitReport(unit, message="no luck") if left > 0 else UnitReport(unit, timing=TIMING)]


def test_a_run_that_fails_is_tried_once_more_and_the_rest_goes_on(tmp_path):
    units, _ = planned(replace(smoke(), availability=(None,)), subjects=6)
    once, twice = units[0], units[3]
    executor = FailingExecutor({once.path: 1, twice.path: 2})
    reports = {report.unit.path: report for report in run_units(units, executor) if report is not None}
    assert reports[once.path].timing == TIMING
    assert reports[twice.path].message == "no luck"
    assert len(reports) == len(units) == len(executor.submitted) - 2
    update_failures(tmp_path, [report for report in reports.values() if report.message])
    assert failures(tmp_path) == ["unet,all,flair-only,0,0,no luck"]


def failures(out):
    header, *lines = (out / "failures.csv").read_text().splitlines()
    assert header == "model,availability,method,fold,repeat,message"
    return lines


def test_a_failure_is_told_until_its_run_is_done(tmp_path):
    units, _ = planned(replace(smoke(), availability=(None,)), subjects=6)
    first, second = units[0], units[5]
    update_failures(tmp_path, [UnitReport(second, message="no luck"), UnitReport(first, message="no light")])
    update_failures(tmp_path, [])  # a call that plans neither
    assert failures(tmp_path) == ["unet,all,equal,0,0,no light", "unet,all,shift-conservative,1,0,no luck"]
    update_failures(tmp_path, [UnitReport(first, message="still dark")])
    assert failures(tmp_path) == ["unet,all,equal,0,0,still dark", "unet,all,shift-conservative,1,0,no luck"]
    for unit, left in ((first, 1), (second, 0)):
        run = replace(unit, out=tmp_path).path
        run.mkdir(parents=True)
        for name in ("finished.json", "metrics.csv"):
            (run / name).touch()
        update_failures(tmp_path, [])
        assert (tmp_path / "failures.csv").exists() == bool(left)


@pytest.mark.parametrize("text", ["", "diary\nrain\n", "model,availability,method,fold,repeat,message\nunet,all\n"])
def test_failures_that_make_no_sense_are_forgotten(tmp_path, text):
    (tmp_path / "failures.csv").write_text(text)
    update_failures(tmp_path, [])
    assert not (tmp_path / "failures.csv").exists()


def test_the_forecast_follows_from_finished_runs(tmp_path):
    units, slices = planned(replace(smoke(), availability=(None,)), subjects=6)
    forecast = Forecast(slices)
    assert forecast.total(units, workers=1) is None
    for unit in units[:4]:
        add_timing(tmp_path, unit, TIMING)
    add_timing(tmp_path, units[0], replace(TIMING, training=6.0))
    add_timing(tmp_path, units[1], Timing(epochs=0, steps=0, training=0.0, validation=0.0, evaluation=9.0))
    assert len(read_timings(tmp_path / "timings.csv")) == 4
    forecast.learn(tmp_path, units)
    assert forecast.step[step_kind(units[0])] == 1.5
    # three training subjects have nine slices a domain: two steps of 4 + 4 an epoch, two epochs
    assert forecast.seconds(units[0]) == pytest.approx(2 * (2 * 1.5 + 0.25) + 1.0)
    alone, shared = (forecast.total(units, workers=workers) for workers in (1, 2))
    assert shared == pytest.approx(alone / 2)


def test_times_are_added_to_a_table_and_a_damaged_table_is_not_learned_from(tmp_path):
    units, slices = planned(replace(smoke(), availability=(None,)), subjects=6)
    forecast = Forecast(slices)
    (tmp_path / "timings.csv").write_text("model,availability\nunet,all\n")
    forecast.learn(tmp_path, units)
    assert forecast.seconds(units[0]) is None
    add_timing(tmp_path, units[0], TIMING)
    add_timing(tmp_path, units[1], TIMING)
    first, second = read_timings(tmp_path / "timings.csv").values()
    assert first == second == RunTiming(steps=4, seconds_per_step=0.5, validation_seconds=0.25, evaluation_seconds=1.0)
    forecast.learn(tmp_path, units)
    assert forecast.validation == {("unet", 2): 0.25}
    assert set(forecast.step.values()) == {0.5}


def write_table(out, units):
    """A table of results with a row per unit, test subject and domain."""
    rows = []
    for unit in units:
        for subject in unit.split.test:
            for domain in ("flair", "t1"):
                rows.append(unit.key.row | {"subject": subject, "domain": domain, "dsc": "0.5"})
    (out / "results.csv").write_text(as_csv(rows))


def test_a_unit_in_the_table_is_done_unless_it_has_a_folder_or_lacks_a_scan(tmp_path):
    slices = invented(6)
    units = plan(replace(smoke(), availability=(None,)), slices, data=Path("data"), out=tmp_path)
    assert units_to_do(tmp_path, units, slices) == units
    write_table(tmp_path, units[:4])
    assert units_to_do(tmp_path, units, slices) == units[4:]
    units[0].path.mkdir(parents=True)  # a run that was begun again
    assert units_to_do(tmp_path, units, slices) == [units[0], *units[4:]]
    table = (tmp_path / "results.csv").read_text().splitlines(keepends=True)
    for missing in (1, 2):  # the T1 of the last test subject of units[3], then its FLAIR too
        (tmp_path / "results.csv").write_text("".join(table[:-missing]))
        assert units_to_do(tmp_path, units, slices) == [units[0], *units[3:]]


def test_a_scan_that_a_test_subject_does_not_have_is_not_waited_for(tmp_path):
    slices = invented(6)
    flair = slices.domains["flair"]
    slices.domains["flair"] = flair.of(slices.subjects[1:])
    units = plan(replace(smoke(), availability=(None,)), slices, data=Path("data"), out=tmp_path)
    write_table(tmp_path, units)
    table = (tmp_path / "results.csv").read_text().splitlines(keepends=True)
    (tmp_path / "results.csv").write_text("".join(row for row in table if f"{slices.subjects[0]},flair" not in row))
    assert units_to_do(tmp_path, units, slices) == []


def test_rows_of_units_without_a_folder_are_kept_in_the_order_of_the_design(tmp_path):
    units = plan(replace(smoke(), availability=(None,)), invented(6), data=Path("data"), out=tmp_path)
    write_table(tmp_path, reversed(units[:4]))
    assert write_results(tmp_path) == 4
    methods = [line.split(",")[2] for line in (tmp_path / "results.csv").read_text().splitlines()[1:]]
    assert methods[::4] == ["equal", "shift-conservative", "conservative-25", "flair-only"]
    kept = (tmp_path / "results.csv").read_bytes()
    assert write_results(tmp_path) == 4
    assert (tmp_path / "results.csv").read_bytes() == kept


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("unet,all,equal,first,0,sub-00,flair,0.5", "line 2: fold must be a whole number"),
        ("unet,all,,0,0,sub-00,flair,0.5", "line 2: method is empty"),
        ("unet,all,equal,0,0,sub-00,flair", "line 2: must have 8 cells"),
    ],
)
def test_a_damaged_table_of_results_is_named(tmp_path, row, message):
    (tmp_path / "results.csv").write_text(f"model,availability,method,fold,repeat,subject,domain,dsc\n{row}\n")
    with pytest.raises(UserError, match=message):
        write_results(tmp_path)
