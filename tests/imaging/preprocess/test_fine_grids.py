"""Scans of more voxels than 256³: the same results, to the last digits, with less memory."""

import tracemalloc

import numpy as np
import pytest
import SimpleITK as sitk

import heads
from steelyard.imaging.preprocess import Settings, bias
from steelyard.imaging.preprocess.pipeline import prepare_contrast
from steelyard.imaging.preprocess.whitestripe import find_stripe
from steelyard.imaging.scans import boxes
from steelyard.imaging.scans.volumes import Volume

LABELS = heads.tissue()
BRAIN = heads.brain(LABELS)


@pytest.fixture
def shaded():
    x, y, z = np.meshgrid(*(np.linspace(-1, 1, size) for size in heads.SHAPE), indexing="ij")
    scan = heads.scan("t1", LABELS)
    return scan.with_voxels((scan.voxels * np.exp(0.2 * x - 0.15 * y * z + 0.1 * z**2)).astype(np.float32))


@pytest.fixture
def all_is_fine(monkeypatch):
    monkeypatch.setattr(boxes, "ORDINARY", 0)


def test_n4_s_field_is_restored_from_a_few_samples(shaded, monkeypatch):
    whole = bias.correct_bias(shaded, brain=BRAIN)
    monkeypatch.setattr(boxes, "ORDINARY", 0)
    restored = bias.correct_bias(shaded, brain=BRAIN)
    assert whole.field.std() > 0.05
    assert np.abs(restored.field / whole.field - 1).max() < 1e-4
    assert restored.scan.voxels.dtype == np.float32


def test_n4_evaluates_a_fine_field_on_a_small_grid_only(shaded, all_is_fine, monkeypatch):
    sizes = []

    class Recorded(sitk.N4BiasFieldCorrectionImageFilter):
        def GetLogBiasFieldAsImage(self, reference):  # noqa: N802
            sizes.append(reference.GetNumberOfPixels())
            return super().GetLogBiasFieldAsImage(reference)

    monkeypatch.setattr(bias.sitk, "N4BiasFieldCorrectionImageFilter", Recorded)
    bias.correct_bias(shaded, brain=BRAIN)
    assert len(sizes) == 1
    assert sizes[0] < 10_000


def test_the_stripe_is_the_same_when_the_surroundings_are_cut_away(shaded, monkeypatch):
    whole = find_stripe(shaded, brain=BRAIN)
    monkeypatch.setattr(boxes, "ORDINARY", 0)
    cut = find_stripe(shaded, brain=BRAIN)
    assert cut.mean == pytest.approx(whole.mean, rel=1e-6)
    assert cut.deviation == pytest.approx(whole.deviation, rel=1e-6)


def test_memory_for_a_head_in_much_air(shaded, all_is_fine):
    air = [(size // 2, size // 2) for size in heads.SHAPE]
    scan = Volume(np.pad(shaded.voxels, air), heads.AFFINE)
    brain = Volume(np.pad(BRAIN.voxels, air), heads.AFFINE)
    tracemalloc.start()
    prepare_contrast(scan, None, Settings(), brain=brain, seconds={})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Three results of 4 bytes for each voxel are returned; with every step on the whole grid the peak was at 61 bytes.
    assert peak / scan.voxels.size < 24
