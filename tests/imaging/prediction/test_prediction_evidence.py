"""What docs/predict.md claims, on phantoms and, with a trained run at STEELYARD_RUN, on real scans."""

import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from time import perf_counter

import nibabel
import numpy as np
import pytest
import torch
from scipy import ndimage

import heads
import networks_by_hand
from steelyard.imaging.bids import read_bids
from steelyard.imaging.frame import Frame
from steelyard.imaging.grids import resample
from steelyard.imaging.prediction import Options, load_model, predict_scan
from steelyard.imaging.preprocessing.pipeline import dice
from steelyard.imaging.segmentation.inference import FOUR_TIMES, lesion_mask, segment
from steelyard.imaging.volumes import Volume, canonical, read_scan

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
DATA = Path(os.environ.get("STEELYARD_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))
TURNS = ([[1, -1], [0, 1], [2, -1]], [[2, 1], [0, -1], [1, 1]], [[0, -1], [2, 1], [1, -1]])


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    phantom = pytest.importorskip("steelyard.imaging.phantom")
    root = tmp_path_factory.mktemp("phantom") / "bids"
    list(phantom.write_cohort(root, phantom.Cohort(subjects=1, seed=21, scanner="clinical-1.5t")))
    return read_bids(root).subjects[0].flair


@pytest.fixture(scope="module")
def trained():
    if "STEELYARD_RUN" not in os.environ:
        pytest.skip("set STEELYARD_RUN to the directory of a trained run")
    return load_model(Path(os.environ["STEELYARD_RUN"]))


def real(name: str) -> Path:
    for folder in (DATA / name, DATA.parents[2] / "shared" / "data" / name):
        if folder.is_dir():
            return folder
    pytest.skip(f"{name} is not beside the project; set STEELYARD_DATA to where it is")


def test_axes_do_not_matter_to_deepbet_and_n4(head, tmp_path):
    run = networks_by_hand.write_run(tmp_path / "run", level=20.0, settings=networks_by_hand.config(Frame()))
    model, first = load_model(run), None
    image = nibabel.load(head)
    for turn in TURNS:
        path = tmp_path / "sub-1_FLAIR.nii.gz"
        image.as_reoriented(np.array(turn)).to_filename(path)
        found = predict_scan(path, model, Options())
        first = first or found
        assert found.steps["brain"] == "deepbet"
        assert np.array_equal(found.brain.voxels, first.brain.voxels)
        assert np.array_equal(found.scan.voxels, first.scan.voxels)
        assert np.array_equal(found.probabilities.voxels, first.probabilities.voxels)
        assert found.lesions.volumes_ml == first.lesions.volumes_ml


def resampled(path: Path, tmp_path: Path, *, spacing: tuple[float, float, float]) -> tuple[Path, Volume]:
    scan = canonical(read_scan(path))
    shape = [round(size * old / new) for size, old, new in zip(scan.voxels.shape, scan.spacing, spacing, strict=True)]
    affine = scan.affine.copy()
    affine[:3, :3] = scan.affine[:3, :3] / scan.spacing * spacing
    grid = Volume(np.zeros(shape, dtype=np.float32), affine)
    return heads.save(tmp_path / "sub-r_FLAIR.nii.gz", resample(scan, grid, np.eye(4))), scan


def agreement(model, path: Path, tmp_path: Path, spacing: tuple[float, float, float]) -> float:
    other, scan = resampled(path, tmp_path, spacing=spacing)
    one, two = (predict_scan(each, model, Options()) for each in (path, other))
    assert one.lesions.count > 0
    # Probabilities are brought back, not the mask: nearest neighbour alone takes 0.05 to 0.11 from small lesions.
    back = resample(Volume(two.probabilities.voxels, read_scan(other).affine), scan, np.eye(4))
    return dice(one.lesions.mask.voxels, lesion_mask(back.voxels, Options().threshold))


@pytest.mark.parametrize("index", range(9))
def test_a_resampled_scan_agrees(trained, tmp_path, index):
    subject = list(islice(read_bids(real("ms-t1-flair")).subjects, 9))[index]
    across = canonical(read_scan(subject.flair)).spacing
    found = agreement(trained, subject.flair, tmp_path, (0.8 * across[0], 0.8 * across[1], across[2]))
    sys.stdout.write(f"{subject.key}: Dice {found:.3f}\n")
    assert found >= 0.95


def test_half_a_minute_for_an_ordinary_scan(tmp_path):
    torch.set_num_threads(2)
    settings = networks_by_hand.config(Frame(shape=(256, 224)), width=16)
    model = load_model(networks_by_hand.write_run(tmp_path / "run", settings=settings))
    scan = Volume(np.random.default_rng(0).normal(size=(256, 256, 20)).astype(np.float32), np.diag([0.9, 0.9, 7, 1]))
    brain = scan.with_voxels(np.ones(scan.voxels.shape, dtype=bool))
    start = perf_counter()
    segment(model.network, scan, brain, frame=model.frame, shifts=FOUR_TIMES)
    spent = perf_counter() - start
    sys.stdout.write(f"256×256×20: {spent:.1f} s\n")
    assert spent <= 30


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_two_gigabytes_for_a_fine_scan_preprocessing_included(head, tmp_path):
    settings = networks_by_hand.config(Frame(), width=16)
    run = networks_by_hand.write_run(tmp_path / "run", level=20.0, settings=settings)
    scan = canonical(read_scan(head))
    wanted = (256, 256, 180)
    zoom = [new / old for new, old in zip(wanted, scan.voxels.shape, strict=True)]
    fine = ndimage.zoom(scan.voxels, zoom, order=1).astype(np.float32)
    assert fine.shape == wanted
    affine = np.diag([*(edge / factor for edge, factor in zip(scan.spacing, zoom, strict=True)), 1.0])
    path = heads.save(tmp_path / "sub-1_FLAIR.nii.gz", Volume(fine, affine))
    code = (
        "import sys; from pathlib import Path; from steelyard.cli import main\n"
        "status = main(sys.argv[1:]); print(Path('/proc/self/status').read_text()); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "predict", run, path, tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1]) / 1e6
    sys.stdout.write(f"256×256×180: {peak:.2f} GB\n")
    assert peak <= 2.0
