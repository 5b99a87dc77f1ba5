import io

import pytest
from rich.console import Console

from steelyard.cli import main
from steelyard.cli.progress import Estimate, Idle, track
from steelyard.imaging.preprocess import JobResult


@pytest.fixture
def pretend(monkeypatch):
    """Every subject is done at once; what was found while reading fails."""

    def preprocess(dataset, out, *, settings, workers):
        yield from (JobResult(fault.subject, "failed", str(fault)) for fault in dataset.faults)
        yield from (JobResult(subject.key, "done") for subject in dataset.subjects)

    monkeypatch.setattr("steelyard.imaging.preprocess.preprocess", preprocess)


def write(root, *names):
    for name in names:
        path = root / name.split("_")[0] / "anat" / f"{name}.nii.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return str(root)


@pytest.mark.parametrize("option", ["--wmh", "--brain-mask"])
def test_patterns_of_masks_alone_are_refused(tmp_path, capsys, option):
    root = write(tmp_path / "in", "sub-1_FLAIR")
    assert main(["preprocess", root, str(tmp_path / "out"), option, "{subject}.nii"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "need --flair or --t1" in said


def test_entities_do_not_choose_in_a_plain_folder(tmp_path, capsys):
    arguments = ["--flair", "{subject}_FLAIR.nii", "--choose", "run-1"]
    assert main(["preprocess", str(tmp_path), str(tmp_path / "out"), *arguments]) == 2
    assert "--choose is for BIDS" in capsys.readouterr().err


def test_faults_are_said_once_and_missing_masks_in_one_line(pretend, tmp_path, capsys):
    runs = [f"sub-0_run-{run}_{contrast}" for run in "12" for contrast in ("FLAIR", "T1w")]
    whole = [f"sub-{number}_{contrast}" for number in range(1, 6) for contrast in ("FLAIR", "T1w")]
    assert main(["preprocess", write(tmp_path / "in", *runs, *whole), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("could be its flair") == 1
    assert "5 subjects have no lesion mask: sub-1, sub-2, sub-3, …\n" in said
    assert said.count("no lesion mask") == 1
    assert "5 of 6 subjects are ready" in said


def test_the_estimate_comes_from_what_took_work():
    now = 0.0
    estimate = Estimate(10, lambda: now)
    for name in (Idle("a"), Idle("b")):
        now += 1.0
        estimate.finish(name)
    assert estimate.left() is None
    now += 100.0
    estimate.finish("c")
    assert estimate.left() == pytest.approx(700.0)
    now += 40.0
    assert estimate.left() == pytest.approx(660.0)
    estimate.finish(Idle("d"))
    assert estimate.left() == pytest.approx(140.0 * 6)


@pytest.mark.parametrize("terminal", [False, True])
def test_slow_things_get_an_estimate_too(terminal, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("steelyard.cli.progress.Estimate.__init__.__defaults__", (lambda: now[0],), raising=False)

    def names():
        yield Idle("old unchanged")
        now[0] += 90.0
        yield "new"

    out = io.StringIO()
    track(names(), total=4, title="Working", console=Console(file=out, force_terminal=terminal, width=100))
    text = out.getvalue()
    assert ("0:03:00" if terminal else "new (2 of 4, about 180 s left)") in text
    assert ("" if terminal else "old unchanged (1 of 4)\n") in text
