import numpy as np
import pytest
import torch
from torch import nn

import heads
from steelyard.errors import UserError
from steelyard.experiments.configs import smoke
from steelyard.imaging.datasets.bids import read_bids
from steelyard.imaging.datasets.prepared import read_volumes
from steelyard.imaging.evaluate.evaluation import evaluate, metrics_name, summarise
from steelyard.imaging.evaluate.metrics import volume_metrics, voxel_metrics
from steelyard.imaging.networks.inference import FOUR_TIMES, TWICE, lesion_mask, segment
from steelyard.imaging.scans.frame import Frame
from steelyard.imaging.scans.volumes import canonical


class Brightness(nn.Module):
    """The brighter, the likelier: 200 is a half."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.1))

    def forward(self, slices):
        return (slices - 200) * self.scale


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    root = tmp_path_factory.mktemp("heads")
    for number in range(2):
        heads.write_subject(root, f"{number}", seed=number)
    return read_bids(root)


def test_scores_are_those_of_the_metrics_on_the_scans_own_grid(dataset):
    config = smoke()
    scores = list(evaluate(Brightness(), dataset, config=config, parts={"sub-1": "test"}, threshold=0.4))
    assert [(score.subject, score.domain, score.part) for score in scores] == [
        ("sub-1", "flair", "test"),
        ("sub-1", "t1", "test"),
    ]
    whole = read_volumes(dataset.subjects[1])
    truth = canonical(whole.wmh).voxels
    found = canonical(segment(Brightness(), whole.scans["flair"], whole.brain, frame=config.slices.frame)).voxels
    indices = config.slices.pick(canonical(whole.brain).voxels)
    planes = slice(indices.start, indices.stop)
    assert scores[0].slices == voxel_metrics(found[:, :, planes], truth[:, :, planes], threshold=0.4)
    assert scores[0].volume == volume_metrics(found > 0.4, truth, spacing=(3.0, 3.0, 3.5))
    assert 0.5 < scores[0].slices.dsc < 1
    assert scores[0].slices != voxel_metrics(found, truth, threshold=0.4)


def test_means_are_over_the_subjects_in_whom_a_metric_is_defined(dataset):
    scores = list(evaluate(Brightness(), dataset, config=smoke(), parts=dict.fromkeys(["sub-0", "sub-1"], "test")))
    flair = summarise(scores)[0]
    expected = [score.slices.dsc for score in scores if score.domain == "flair"]
    assert flair["subjects"] == 2
    assert flair["dsc"] == pytest.approx(sum(expected) / 2)
    dark = nn.Sequential(Brightness(), nn.Threshold(1e9, -30.0))
    missed = summarise(list(evaluate(dark, dataset, config=smoke(), parts={"sub-0": "test"})))[0]
    assert missed["dsc"] == 0
    assert np.isnan(missed["hd95"])


def test_output_that_is_not_finite_is_no_result(dataset):
    whole = read_volumes(dataset.subjects[0])
    broken = nn.Sequential(Brightness(), nn.Threshold(1e9, float("nan")))
    with pytest.raises(UserError, match="not finite"):
        segment(broken, whole.scans["t1"], whole.brain, frame=Frame(shape=(64, 64), pixel_mm=4.0))


def test_a_lesion_is_where_the_probability_is_greater():
    assert lesion_mask(np.array([0.4, 0.5, 0.6], dtype=np.float32), 0.5).tolist() == [False, False, True]


def test_four_placements_are_two_and_the_two_across(dataset):
    whole = read_volumes(dataset.subjects[0])
    frame = Frame(shape=(64, 64), pixel_mm=3.0)
    across = tuple(shift for shift in FOUR_TIMES if shift not in TWICE)
    four, two, rest = (
        segment(Brightness(), whole.scans["flair"], whole.brain, frame=frame, shifts=shifts).voxels
        for shifts in (FOUR_TIMES, TWICE, across)
    )
    assert sorted(across) == [(-0.25, 0.25), (0.25, -0.25)]
    assert not np.array_equal(two, rest)
    np.testing.assert_allclose(four, (two + rest) / 2, atol=1e-6)


def test_the_mean_of_two_frames_keeps_a_lesion_where_it_is(dataset):
    whole = read_volumes(dataset.subjects[0])
    found = segment(Brightness(), whole.scans["flair"], whole.brain, frame=Frame(shape=(64, 64), pixel_mm=3.0)).voxels
    middle = np.argwhere(whole.wmh.voxels).mean(axis=0)
    assert np.argwhere(found > 0.5).mean(axis=0) == pytest.approx(middle, abs=0.5)
    assert not found[~whole.brain.voxels].any()


def test_tables_of_other_data_never_take_the_name_of_a_part_or_of_each_other(tmp_path):
    parts = [metrics_name(tmp_path, part=part) for part in ("test", "validate", "train", "all")]
    folders = [tmp_path / site / name for site in "ab" for name in ("all", "train", "validate", "test", "derivatives")]
    names = [*parts, *(metrics_name(folder, part=None) for folder in folders)]
    assert len({name.lower() for name in names}) == len(names)
    assert metrics_name(tmp_path / "a" / ".." / "a" / "all", part=None) == names[len(parts)]
