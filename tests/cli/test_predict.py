import os
import shutil

import numpy as np
import pytest

import heads
import networks_by_hand
from steelyard.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return networks_by_hand.write_run(tmp_path_factory.mktemp("model") / "run")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr("steelyard.imaging.predict.pipeline.find_ventricles", lambda scan, brain: None)
    monkeypatch.setattr("steelyard.imaging.predict.cohort.draw_mosaic", lambda prediction, row: b"")


@pytest.fixture
def bids(tmp_path):
    labels = heads.tissue()
    inside = heads.brain(labels).voxels
    for name in ("sub-1_FLAIR", "sub-1_T1w", "sub-2_FLAIR"):
        scan = heads.scan("flair", labels, noise=2.0)
        stripped = np.where(inside, scan.voxels, 0).astype(np.float32)
        heads.save(tmp_path / "bids" / name[:5] / "anat" / f"{name}.nii.gz", scan.with_voxels(stripped))
    return tmp_path / "bids"


def predict(*arguments):
    return main(["predict", *map(str, arguments), "--bias", "skip", "--normalise", "skip"])


def test_a_dataset_is_predicted_once(run, bids, tmp_path, capsys):
    out = tmp_path / "out"
    assert predict(run, bids, out) == 0
    said = capsys.readouterr().err
    assert "Predicting: sub-1_space-FLAIR (1 of 3" in said
    assert said.endswith(f"3 of 3 scans are done; look at {out / 'index.html'}\n")
    table = (out / "volumes.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in table[1:]] == ["sub-1_space-FLAIR", "sub-1_space-T1w", "sub-2_space-FLAIR"]
    assert predict(run, bids, out) == 0
    assert capsys.readouterr().err.count("unchanged") == 3


def test_files_and_options_reach_the_work(run, bids, tmp_path):
    first, second = (bids / f"sub-{n}/anat/sub-{n}_FLAIR.nii.gz" for n in (1, 2))
    out = tmp_path / "out"
    assert predict(run, first, second, out, "--threshold", "0.3", "--smallest-ml", "0.5", "--brain", "skip") == 0
    header, *rows = ((out / "volumes.csv").read_text()).splitlines()
    told = dict(zip(header.split(","), rows[0].split(","), strict=True))
    assert len(rows) == 2
    assert (told["threshold"], told["smallest_ml"], told["brain"], told["bias"]) == ("0.3", "0.5", "stripped", "skip")
    assert predict(run, bids, tmp_path / "t1", "--contrast", "t1") == 0
    assert (tmp_path / "t1/volumes.csv").read_text().count("\n") == 2


def test_a_broken_scan_is_told_and_the_others_finish(run, bids, tmp_path, capsys):
    broken = bids / "sub-1/anat/sub-1_T1w.nii.gz"
    broken.write_bytes(b"")
    assert predict(run, bids, tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert said.count(f"failed: sub-1_space-T1w: {broken}: ") == 1
    assert "2 of 3 scans are done" in said


def test_links_in_a_circle_and_pipes_are_told_and_the_others_finish_whatever_their_names(run, bids, tmp_path, capsys):
    good = bids / "sub-2/anat/sub-2_FLAIR.nii.gz"
    for name in (b"sub-M\xfcller_FLAIR.nii.gz", b"sub-M\xf6ller_FLAIR.nii.gz"):
        shutil.copy(good, os.fsencode(bids) + b"/" + name)
    (bids / "sub-3_FLAIR.nii.gz").symlink_to(bids / "sub-3_FLAIR.nii.gz")
    (bids / "sub-4").symlink_to(bids / "sub-4")
    os.mkfifo(bids / "sub-5_FLAIR.nii.gz")
    assert predict(run, bids, tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert said.count("leads in a circle") == 2
    assert said.count("not a regular file") == 1
    assert said.count("failed: sub-") == 3
    assert "5 of 8 scans are done" in said
    assert (tmp_path / "out/volumes.csv").read_text().count(",failed,") == 3


def test_the_largest_scan_is_an_option(run, bids, tmp_path, capsys):
    scan = bids / "sub-2/anat/sub-2_FLAIR.nii.gz"
    assert predict(run, scan, tmp_path / "out", "--largest-scan", "0.1") == 2
    said = capsys.readouterr().err
    assert "60×72×44 are 0.2 million voxels; at most 0.1 million are read (raise it with --largest-scan" in said
    assert predict(run, scan, tmp_path / "out", "--largest-scan", "0.2") == 0
    assert predict(run, scan, tmp_path / "out") == 0
    assert "sub-2_space-FLAIR unchanged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["{run}", "{bids}"], "at least one scan and the folder"),
        (["{bids}", "{bids}", "{out}"], "config.json: there is no such file; this is not a run folder"),
        (["{run}", "{bids}/none.nii", "{out}"], "none.nii: there is no such file"),
        (["{run}", "{bids}", "{out}", "--threshold", "1.5"], "threshold must lie between 0 and 1"),
        (["{run}", "{bids}", "{out}", "--smallest-ml", "-1"], "smallest_ml must be at least 0"),
        (["{run}", "{bids}", "{bids}"], "the output must not be the input|was not written by steelyard predict"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(run, bids, tmp_path, capsys, arguments, match):
    given = [part.format(run=run, bids=bids, out=tmp_path / "out") for part in arguments]
    assert main(["predict", *given]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert any(words in said for words in match.split("|"))
    assert not (tmp_path / "out").exists()
