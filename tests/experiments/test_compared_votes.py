from dataclasses import replace

import pytest
import torch
from lightning.fabric import Fabric

from steelyard.errors import UserError
from steelyard.experiments.compared_votes import Compared, retrace
from steelyard.experiments.configs import smoke
from steelyard.imaging.datasets.prepared import read_prepared
from steelyard.imaging.runs.run_folder import RunFolder
from steelyard.imaging.runs.split import split_subjects
from steelyard.imaging.train.data import load_labelled
from steelyard.imaging.train.launch import TrainingJob, prepare_training, train
from steelyard.imaging.train.run_writer import RunWriter
from steelyard.imaging.train.training import fit
from steelyard.probing import FirstOrder, InnerLoop

BESIDE = {"first": FirstOrder, "batch": lambda: FirstOrder(meta_test="batch"), "again": InnerLoop}


def job(cohort, out, **settings):
    config = replace(smoke(), method="conservative-25", **settings)
    slices = load_labelled(read_prepared(cohort), config.slices, domains=config.domains)
    split = split_subjects(slices.subjects, folds=5, seed=0)
    return TrainingJob(config=config, split=split, slices=slices, out=out)


def trained(given, compared):
    """Weights, optimizer, records and random numbers after training."""
    training_state, learned, judged = prepare_training(given, Fabric(accelerator="cpu", devices=1))
    if compared:
        training_state.balancer.probe = Compared(InnerLoop(), {name: make() for name, make in BESIDE.items()})
    records = list(fit(training_state, learned, judged))
    tensors = [*training_state.network.state_dict().values()]
    tensors += [value for state in training_state.optimizer.state.values() for value in state.values()]
    return tensors, records, torch.get_rng_state(), training_state.balancer.probe


def test_a_run_that_compares_is_the_exact_run_to_the_bit(cohort, tmp_path):
    given = job(cohort, tmp_path / "run")
    alone, records, numbers, _ = trained(given, compared=False)
    beside, compared_records, compared_numbers, probe = trained(given, compared=True)
    assert len(alone) == len(beside)
    assert all(torch.equal(one, other) for one, other in zip(alone, beside, strict=True))
    assert records == compared_records
    assert torch.equal(numbers, compared_numbers)
    steps = [step for record in records for step in record.steps]
    assert len(probe.answers) == len(steps) == 4
    for step, answers in zip(steps, probe.answers, strict=True):
        assert set(answers) == set(BESIDE)
        assert answers["again"].values.tolist() == list(step.hypothetical.values())
        assert answers["first"].values.tolist() != answers["again"].values.tolist()


def test_a_probe_that_skips_steps_cannot_be_compared():
    with pytest.raises(ValueError, match=r"every probe must answer on every step; got FirstOrder"):
        Compared(InnerLoop(), {"late": FirstOrder(every=2)})


def test_a_retraced_run_is_the_one_on_disk(cohort, tmp_path):
    given = job(cohort, tmp_path / "run")
    records = list(train(given))
    before = {path: path.read_bytes() for path in given.out.iterdir()}
    epochs = list(retrace(RunFolder(given.out), cohort, ["conservative-25+first-order"]))
    assert [len(rows) for rows in epochs] == [2 * len(record.steps) for record in records]
    exact = [row for rows in epochs for row in rows if row["method"] == "conservative-25"]
    steps = [step for record in records for step in record.steps]
    assert [row["vote"] for row in exact] == [step.vote for step in steps]
    assert [[row[f"hypothetical_{name}"] for name in ("flair", "t1")] for row in exact] == [
        list(step.hypothetical.values()) for step in steps
    ]
    for row in (row for rows in epochs for row in rows):
        worst = max(("flair", "t1"), key=lambda name, row=row: row[f"hypothetical_{name}"])
        assert row["vote"] == worst
    assert len(list(retrace(RunFolder(given.out), cohort, ["conservative-25+first-order"], epochs=1))) == 1
    assert {path: path.read_bytes() for path in given.out.iterdir()} == before


def test_what_is_not_exact_or_not_the_runs_own_is_refused(cohort, tmp_path):
    late = job(cohort, tmp_path / "late", every=2)
    RunWriter(late.out).begin(late.config, late.split, late.slices.digests)
    with pytest.raises(UserError, match=r"late: votes on each 2th step only"):
        next(retrace(RunFolder(late.out), cohort, []))
    given = job(cohort, tmp_path / "run")
    RunWriter(given.out).begin(given.config, given.split, given.slices.digests)
    with pytest.raises(UserError, match=r"method shift-conservative: casts no votes"):
        next(retrace(RunFolder(given.out), cohort, ["shift-conservative"]))
    split = given.out / "split.json"
    split.write_text(split.read_text().replace('"digests": {', '"digests": {"sub-9": "0",'))
    with pytest.raises(UserError, match=r"split.json: the run there has another digests"):
        next(retrace(RunFolder(given.out), cohort, []))
