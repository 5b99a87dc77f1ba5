import tracemalloc

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk

import heads
from steelyard.errors import UserError
from steelyard.imaging.datasets.subjects import Subject
from steelyard.imaging.preprocess import Settings, bias, prepare
from steelyard.imaging.preprocess.bias import correct_bias
from steelyard.imaging.preprocess.pipeline import prepare_contrast
from steelyard.imaging.preprocess.quality import assess_quality, measure_quality
from steelyard.imaging.preprocess.register import align, dice, identity_if_aligned
from steelyard.imaging.preprocess.whitestripe import find_stripe
from steelyard.imaging.scans import masks
from steelyard.imaging.scans.grids import (
    from_image,
    itk_text,
    mean_displacement,
    resample_mask,
    to_image,
    to_matrix,
    to_transform,
)
from steelyard.imaging.scans.volumes import Volume, canonical

LABELS = heads.tissue()
BRAIN = heads.brain(LABELS)


def test_images_and_matrices_survive_the_way_to_simpleitk_and_back():
    oblique = heads.motion(20.0) @ heads.AFFINE
    volume = heads.scan("t1", LABELS, affine=oblique)
    assert np.array_equal(from_image(to_image(volume), volume).voxels, volume.voxels)
    assert np.allclose(to_matrix(to_transform(oblique)), oblique)
    point = to_image(volume).TransformIndexToPhysicalPoint((3, 5, 7))
    assert np.allclose(np.array(point) * (-1, -1, 1), (oblique @ (3, 5, 7, 1))[:3])
    assert itk_text(np.eye(4)).startswith("#Insight Transform File V1.0")


def test_a_known_motion_is_found_to_a_third_of_a_millimetre():
    true = heads.motion()
    t1_affine = heads.AFFINE.copy()
    t1_affine[:3, 3] += (1.0, 1.5, 0.5)
    t1 = heads.scan("t1", heads.tissue(affine=t1_affine, pose=true), affine=t1_affine, seed=1)
    found = align(heads.scan("flair", LABELS), t1, brain=BRAIN)
    assert mean_displacement(np.eye(4), true, BRAIN) > 4.0
    assert mean_displacement(found.matrix, true, BRAIN) < 0.35
    brought = resample_mask(Volume(heads.tissue(affine=t1_affine, pose=true) >= 3, t1_affine), BRAIN, found.matrix)
    assert dice(brought.voxels, LABELS >= 3) > 0.97


def test_heads_that_the_headers_leave_far_apart_are_brought_together_by_their_brains():
    true = heads.motion(2.0, (70.0, 10.0, 0.0))
    far = heads.AFFINE.copy()
    far[:3, 3] += (71.3, 11.1, 0.7)
    labels = heads.tissue(affine=far, pose=true)
    t1 = heads.scan("t1", labels, affine=far, seed=1)
    found = align(heads.scan("flair", LABELS), t1, brain=BRAIN, t1_brain=Volume(labels >= 3, far))
    assert mean_displacement(found.matrix, true, BRAIN) < 0.5


def test_aligned_data_is_recognised_only_on_one_grid_and_within_the_tolerance():
    found = align(heads.scan("flair", LABELS), heads.scan("t1", LABELS, seed=1), brain=BRAIN)
    assert found.moved_mm < 0.5
    assert np.array_equal(identity_if_aligned(found, one_grid=True, tolerance_mm=1.5).matrix, np.eye(4))
    assert not identity_if_aligned(found, one_grid=False, tolerance_mm=1.5).unchanged
    assert not identity_if_aligned(found, one_grid=True, tolerance_mm=0.0).unchanged


def test_n4_removes_four_fifths_of_a_smooth_field_in_white_matter():
    clean = heads.scan("t1", LABELS)
    x, y, z = np.meshgrid(*(np.linspace(-1, 1, size) for size in heads.SHAPE), indexing="ij")
    field = np.exp(0.25 * x - 0.2 * y * z + 0.15 * z)
    found = correct_bias(clean.with_voxels((clean.voxels * field).astype(np.float32)), brain=BRAIN)
    white = LABELS == 4
    before, after = np.log(field[white]), np.log(field[white] / found.field[white])
    assert after.var() < 0.2 * before.var()
    assert np.log(found.field[BRAIN.voxels]).mean() == pytest.approx(0.0, abs=1e-4)


def test_n4_leaves_a_scan_without_positive_values_alone():
    dark = heads.scan("t1", LABELS)
    dark = dark.with_voxels(dark.voxels - 1000)
    assert np.array_equal(correct_bias(dark, brain=BRAIN).scan.voxels, dark.voxels)


@pytest.mark.parametrize("contrast", ["flair", "t1"])
def test_the_stripe_is_white_matter_with_mean_0_and_deviation_1(contrast):
    scan = heads.scan(contrast, LABELS)
    stripe = find_stripe(scan, brain=BRAIN)
    inside = scan.voxels[BRAIN.voxels]
    ready = stripe.apply(scan).voxels
    chosen = ready[BRAIN.voxels][(inside >= stripe.lowest) & (inside <= stripe.highest)]
    assert chosen.mean() == pytest.approx(0.0, abs=1e-3)
    assert chosen.std() == pytest.approx(1.0, abs=1e-3)
    assert abs(np.median(ready[LABELS == 4])) < 1.0
    assert abs(np.median(ready[LABELS == 3])) > 5.0


@pytest.mark.parametrize(("scale", "shift"), [(7.0, 0.0), (1e-3, 0.0), (1.0, -160.0), (300.0, 5000.0)])
def test_whitestripe_does_not_change_when_the_input_is_scaled_or_shifted(scale, shift):
    scan = heads.scan("t1", LABELS)
    moved = scan.with_voxels(scan.voxels.astype(np.float64) * scale + shift)
    first = find_stripe(scan, brain=BRAIN).apply(scan).voxels
    second = find_stripe(moved, brain=BRAIN).apply(moved).voxels
    assert np.abs(first - second).max() < 2e-2


def test_whitestripe_agrees_with_the_published_package_where_white_matter_is_the_largest_peak():
    from intensity_normalization.adapters.images import NumpyImageAdapter
    from intensity_normalization.domain.models import Modality
    from intensity_normalization.normalizers.individual.whitestripe import WhiteStripeNormalizer

    scan = heads.scan("t1", LABELS)
    other = WhiteStripeNormalizer(modality=Modality.T2)
    other.fit(NumpyImageAdapter(scan.voxels), NumpyImageAdapter(BRAIN.voxels.astype(np.float32)))
    ours = find_stripe(scan, brain=BRAIN)
    assert abs(ours.mean - other.mean) < 2 * other.std


def test_a_brain_too_small_for_a_histogram_is_refused():
    small = np.zeros(heads.SHAPE, dtype=bool)
    small[28:34, 34:40, 20:24] = True
    with pytest.raises(UserError, match="10 mm inside the brain"):
        find_stripe(heads.scan("t1", LABELS), brain=Volume(small, heads.AFFINE))


def test_canonical_turns_axes_and_keeps_every_voxel_in_its_place():
    volume = heads.scan("t1", LABELS)
    turned = canonical(volume)
    assert "".join(nibabel.aff2axcodes(turned.affine)) == "RAS"
    index = np.array([10, 20, 30, 1.0])
    there = np.linalg.inv(turned.affine) @ volume.affine @ index
    assert turned.voxels[tuple(np.round(there[:3]).astype(int))] == volume.voxels[10, 20, 30]


def test_masks_drawn_on_t1_follow_it_to_flair(tmp_path):
    true = heads.motion()
    far = heads.tissue(pose=true)
    flair_affine = heads.AFFINE.copy()
    flair_affine[:3, 3] += 1.0
    labels = heads.tissue(affine=flair_affine)
    subject = Subject(
        name="1",
        label="1",
        flair=heads.save(tmp_path / "f.nii", heads.scan("flair", labels, affine=flair_affine)),
        t1=heads.save(tmp_path / "t.nii", heads.scan("t1", far, seed=1)),
        wmh=heads.save(tmp_path / "w.nii", Volume(far == 5, heads.AFFINE)),
        brain=heads.save(tmp_path / "b.nii", Volume(labels >= 2, flair_affine)),
    )
    done = prepare(subject, Settings(brain="own"))
    assert done.masks["wmh"].voxels.shape == labels.shape
    untouched = resample_mask(Volume(far == 5, heads.AFFINE), done.brain, np.eye(4)).voxels
    assert dice(done.masks["wmh"].voxels, labels == 5) > 0.7 > 0.5 > dice(untouched, labels == 5)
    assert done.alignment is not None
    assert not done.alignment.unchanged


def pair(tmp_path, *, t1, **others):
    return Subject(
        name="1",
        label="1",
        flair=heads.save(tmp_path / "f.nii", heads.scan("flair", LABELS)),
        t1=heads.save(tmp_path / "t.nii", t1),
        brain=heads.save(tmp_path / "b.nii", BRAIN),
        **others,
    )


def test_brain_outside_the_field_of_view_of_t1_is_left_out_of_it_and_told(tmp_path):
    whole = heads.scan("t1", LABELS, seed=1)
    top = int(np.flatnonzero(BRAIN.voxels.any(axis=(0, 1)))[-1]) - 2
    cut = Volume(whole.voxels[:, :, :top], whole.affine)
    done = prepare(pair(tmp_path, t1=cut), Settings(brain="own", align="skip", bias="skip"))
    beyond = BRAIN.voxels.copy()
    beyond[:, :, :top] = False
    assert beyond.any()
    assert done.t1_missing == pytest.approx(float(beyond.sum()) / BRAIN.voxels.sum(), abs=1e-6)
    assert not done.scans["t1"].ready.voxels[beyond].any()
    assert done.scans["flair"].ready.voxels[beyond].any()
    assert "outside T1w's field of view" in assess_quality([measure_quality(done)])[0].remarks[0]


def test_one_image_as_both_contrasts_is_refused(tmp_path):
    again = heads.scan("flair", LABELS)
    with pytest.raises(UserError, match=r"t\.nii: shows the same image as .*f\.nii"):
        prepare(pair(tmp_path, t1=again.with_voxels(again.voxels * 2 + 5)), Settings(brain="own", align="skip"))


def test_a_scan_that_is_normalised_already_is_refused_unless_told(tmp_path):
    t1 = heads.scan("t1", LABELS, seed=1)
    centred = t1.with_voxels(t1.voxels - float(np.percentile(t1.voxels[BRAIN.voxels], 90)))
    subject = pair(tmp_path, t1=centred)
    with pytest.raises(UserError, match=r"t\.nii: the brain's median is not positive.*--bias skip --normalise skip"):
        prepare(subject, Settings(brain="own", align="skip"))
    assert prepare(subject, Settings(brain="own", align="skip", bias="skip", normalise="skip"))


def test_a_brain_mask_that_is_not_used_may_be_bad(tmp_path):
    subject = pair(tmp_path, t1=heads.scan("t1", LABELS, seed=1))
    heads.save(subject.brain, BRAIN.with_voxels(np.zeros_like(BRAIN.voxels)))
    skipped = {"align": "skip", "bias": "skip", "normalise": "skip"}
    assert "brain" not in prepare(subject, Settings(brain="skip", **skipped)).masks
    with pytest.raises(UserError, match=r"b\.nii: "):
        prepare(subject, Settings(brain="own", **skipped))


def test_every_step_can_be_skipped(tmp_path):
    folder = heads.write_subject(tmp_path, "1")
    subject = Subject(name="1", label="1", flair=folder / "sub-1_FLAIR.nii.gz", t1=folder / "sub-1_T1w.nii.gz")
    done = prepare(subject, Settings(align="skip", bias="skip", brain="skip", normalise="skip"))
    original = nibabel.load(subject.t1).get_fdata()
    assert np.allclose(done.scans["t1"].ready.voxels, original)
    assert done.scans["t1"].stripe is None
    assert done.scans["t1"].field is None


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"align": "no"}, "align must be one of"),
        ({"stripe": 0.5}, "stripe must lie"),
        ({"aligned_mm": -1}, "aligned_mm"),
        ({"depth_mm": 99}, "depth_mm must lie"),
    ],
)
def test_wrong_settings_are_refused(wrong, line):
    with pytest.raises(UserError, match=line):
        Settings(**wrong)


# Scans of more voxels than 256³: the same results, to the last digits, with less memory.


@pytest.fixture
def shaded():
    x, y, z = np.meshgrid(*(np.linspace(-1, 1, size) for size in heads.SHAPE), indexing="ij")
    scan = heads.scan("t1", LABELS)
    return scan.with_voxels((scan.voxels * np.exp(0.2 * x - 0.15 * y * z + 0.1 * z**2)).astype(np.float32))


@pytest.fixture
def all_is_fine(monkeypatch):
    monkeypatch.setattr(masks, "ORDINARY", 0)


def test_n4_s_field_is_restored_from_a_few_samples(shaded, monkeypatch):
    whole = bias.correct_bias(shaded, brain=BRAIN)
    monkeypatch.setattr(masks, "ORDINARY", 0)
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
    monkeypatch.setattr(masks, "ORDINARY", 0)
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
