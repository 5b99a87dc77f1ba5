"""Slices of subjects, how they are augmented, and the batches that an epoch draws from them."""

import io
import os
import zipfile
from collections import Counter

import numpy as np
import pytest
import torch

import heads
from steelyard.errors import UserError
from steelyard.imaging.datasets import prepared
from steelyard.imaging.datasets.bids import read_bids
from steelyard.imaging.runs.slice_settings import Augmentation, SliceChoice
from steelyard.imaging.scans.frame import Frame
from steelyard.imaging.train import slices
from steelyard.imaging.train.sampling import DomainSlices, draw_epoch
from steelyard.imaging.train.slices import load_slices


@pytest.fixture
def dataset(tmp_path):
    heads.write_subject(tmp_path, "1", seed=1)
    heads.write_subject(tmp_path, "2", seed=2, contrasts=("flair",))
    return read_bids(tmp_path)


def test_five_slices_a_subject_stacked_for_training(dataset):
    chosen = load_slices(dataset, SliceChoice(frame=Frame(shape=(64, 64))))
    images, masks, owners = chosen.stack("flair")
    assert images.shape == masks.shape == (10, 1, 64, 64)
    assert images.dtype == masks.dtype == np.float32
    assert owners == ["sub-1"] * 5 + ["sub-2"] * 5
    assert chosen.stack("t1")[0].shape[0] == 5
    assert masks.sum() > 0
    assert images[masks > 0].mean() > 190


def test_rows_run_from_anterior_to_posterior_and_columns_from_left_to_right(dataset):
    subject = load_slices(dataset, SliceChoice(count=None))[0]
    rows, columns = np.nonzero(subject.wmh.any(axis=0))
    middle_row, middle_column = (
        np.argwhere(subject.brain.any(axis=0)).min(0) + np.argwhere(subject.brain.any(axis=0)).max(0)
    ) / 2
    assert columns.mean() > middle_column
    assert rows.mean() > middle_row
    assert len(subject.indices) == subject.brain.shape[0] == subject.images["t1"].shape[0]


def test_the_same_indices_in_every_subject_as_in_the_paper(dataset):
    chosen = load_slices(dataset, SliceChoice(first=20))
    assert [subject.indices for subject in chosen] == [range(20, 25), range(20, 25)]
    with pytest.raises(UserError, match="slices 42 to 46 are wanted; there are 44"):
        load_slices(dataset, SliceChoice(first=42))


def test_cropping_and_padding_keep_every_voxel_they_can(dataset):
    whole = load_slices(dataset, SliceChoice(count=3))[0]
    padded = load_slices(dataset, SliceChoice(count=3, frame=Frame(shape=(200, 210))))[0]
    assert padded.brain.shape == (3, 200, 210)
    assert padded.brain.sum() == whole.brain.sum()
    assert padded.images["t1"].sum() == pytest.approx(whole.images["t1"].sum(), rel=1e-5)


def test_the_cache_spares_the_volumes_until_one_changes(dataset, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    first = load_slices(dataset, cache=cache)
    monkeypatch.setattr(prepared, "read_scan", lambda path: pytest.fail("a volume was read"))
    second = load_slices(dataset, cache=cache)
    assert np.array_equal(first[0].images["t1"], second[0].images["t1"])
    assert np.array_equal(first[0].wmh, second[0].wmh)
    monkeypatch.undo()
    heads.save(dataset.subjects[0].t1, heads.scan("t1", heads.tissue(), seed=99))
    assert not np.array_equal(load_slices(dataset, cache=cache)[0].images["t1"], first[0].images["t1"])
    for kept in cache.iterdir():
        kept.write_bytes(b"half")
    assert np.array_equal(load_slices(dataset, cache=cache)[1].brain, first[1].brain)


def saved(**arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def with_shape(arrays, shape):
    """Return a cache file whose image declares a shape that it does not have."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    stream = io.BytesIO(saved(**{name: array for name, array in arrays.items() if name != "flair"}))
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("flair.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    return stream.getvalue()


def with_central_byte(content, offset, value):
    """Return a cache file with one byte of its first central directory entry changed."""
    changed = bytearray(content)
    changed[content.index(b"PK\x01\x02") + offset] = value
    return bytes(changed)


def compressed(arrays):
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


DAMAGES = {
    "huge": lambda arrays: with_shape(arrays, (100_000, 1_000_000, 1000)),
    "unknown compression": lambda arrays: with_central_byte(saved(**arrays), 10, 99),
    "encrypted": lambda arrays: with_central_byte(saved(**arrays), 8, 1),
    "compressed": compressed,
    "text": lambda arrays: saved(**arrays | {"flair": arrays["flair"].astype(str)}),
    "flat": lambda arrays: saved(**arrays | {"flair": arrays["flair"][0]}),
    "NaN": lambda arrays: saved(**arrays | {"flair": arrays["flair"] * np.float32("nan")}),
    "fewer slices in the mask": lambda arrays: saved(**arrays | {"wmh": arrays["wmh"][1:]}),
    "fewer slices": lambda arrays: saved(**arrays | {"indices": arrays["indices"] + [0, 1]}),
    "numbers as mask": lambda arrays: saved(**arrays | {"brain": arrays["brain"] * 2.0}),
    "no mask": lambda arrays: saved(**{name: array for name, array in arrays.items() if name != "wmh"}),
    "empty": lambda arrays: b"",
}


@pytest.fixture(scope="module")
def cached(tmp_path_factory):
    """A dataset of one subject, the folder of its cache, and the arrays in it."""
    folder = tmp_path_factory.mktemp("cached")
    heads.write_subject(folder, "1", seed=1, contrasts=("flair",))
    dataset = read_bids(folder)
    load_slices(dataset, cache=folder / "cache")
    (path,) = (folder / "cache").iterdir()
    with np.load(path) as arrays:
        return dataset, path, dict(arrays)


@pytest.mark.parametrize("damage", DAMAGES)
def test_slices_are_cut_anew_whatever_is_wrong_with_the_cache(damage, cached):
    dataset, path, arrays = cached
    path.write_bytes(DAMAGES[damage](arrays))
    (subject,) = load_slices(dataset, cache=path.parent)
    assert np.array_equal(subject.images["flair"], arrays["flair"])
    assert np.array_equal(subject.wmh, arrays["wmh"])
    assert np.array_equal(subject.brain, arrays["brain"])
    assert subject.brain.dtype == bool
    assert len(subject.indices) == len(arrays["brain"])
    with zipfile.ZipFile(path) as archive:
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
    with np.load(path) as again:
        assert {name: again[name].shape for name in again} == {name: array.shape for name, array in arrays.items()}


def test_the_cache_notices_a_change_that_keeps_size_and_time(tmp_path):
    heads.write_subject(tmp_path, "1", seed=1, ending=".nii")
    dataset, cache = read_bids(tmp_path), tmp_path / "cache"
    first = load_slices(dataset, cache=cache)
    path = dataset.subjects[0].t1
    before = path.stat()
    heads.save(path, heads.scan("t1", heads.tissue(), seed=99))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert not np.array_equal(load_slices(dataset, cache=cache)[0].images["t1"], first[0].images["t1"])
    path.unlink()
    with pytest.raises(UserError, match=r"T1w\.nii: cannot be read, no such file"):
        load_slices(dataset, cache=cache)


def test_the_cache_of_another_revision_of_the_cut_is_not_read(dataset, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    load_slices(dataset, cache=cache)
    of_first_revision = set(cache.iterdir())
    monkeypatch.setattr(slices, "_CUT_REVISION", slices._CUT_REVISION + 1)
    load_slices(dataset, cache=cache)
    assert len(of_first_revision) == len(dataset.subjects)
    assert len(set(cache.iterdir()) - of_first_revision) == len(dataset.subjects)


def test_what_changes_while_it_is_read_is_not_cached(dataset, tmp_path, monkeypatch):
    real = prepared.read_scan

    def read_and_change(path):
        volume = real(path)
        heads.save(path, volume.with_voxels(volume.voxels + 1))
        return volume

    monkeypatch.setattr(prepared, "read_scan", read_and_change)
    load_slices(dataset, cache=tmp_path / "cache")
    assert not list(tmp_path.glob("cache/*"))


def test_slices_of_different_sizes_need_a_shape(dataset, tmp_path):
    labels = heads.tissue((50, 72, 44))
    path = dataset.subjects[1].flair
    heads.save(path, heads.scan("flair", labels))
    for mask, wanted in ((dataset.subjects[1].brain, labels >= 3), (dataset.subjects[1].wmh, labels == 5)):
        heads.save(mask, heads.Volume(wanted, heads.AFFINE))
    with pytest.raises(UserError, match="give the frame a shape"):
        load_slices(dataset).stack("flair")


def test_raw_scans_on_two_grids_are_refused(dataset):
    heads.save(dataset.subjects[0].t1, heads.scan("t1", heads.tissue((50, 72, 44))))
    with pytest.raises(UserError, match=r"not on one grid\. Run `steelyard preprocess"):
        load_slices(dataset)


@pytest.mark.parametrize("wrong", [{"count": 0}, {"first": -1}, {"height": 1.5}])
def test_impossible_choices_are_refused(wrong):
    with pytest.raises(UserError):
        SliceChoice(**wrong)


def test_a_raw_scan_without_a_brain_mask_is_not_taken_for_a_stripped_one(dataset):
    for mask in dataset.root.rglob("*brain_mask.nii.gz"):
        mask.unlink()
    with pytest.raises(UserError, match=r"no brain mask, and the scan is not stripped\. Run `steelyard preprocess"):
        load_slices(read_bids(dataset.root))


STILL = {"rotation": 0, "scale": (1, 1), "shear": 0}


def disc(rows=64, columns=64, row=31.5, column=31.5, radius=10.0):
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return (((y - row) ** 2 + (x - column) ** 2) < radius**2).float()[None, None]


def change(image, **settings):
    augmentation = Augmentation(**(STILL | settings))
    return augmentation(image, image, generator=torch.Generator().manual_seed(3))


def test_without_any_change_everything_stays():
    image = torch.randn(4, 1, 32, 48)
    changed, masks = change(image)
    assert torch.equal(changed, image)
    assert torch.equal(masks, (image > 0.5).float())


@pytest.mark.parametrize("shape", [(64, 64), (96, 48), (48, 96)])
def test_a_disc_in_the_middle_stays_a_disc_when_it_is_turned(shape):
    image = disc(*shape, row=(shape[0] - 1) / 2, column=(shape[1] - 1) / 2).expand(16, -1, -1, -1)
    changed, _ = change(image, rotation=180)
    apart = (changed - image).abs().sum(dim=(1, 2, 3))
    assert apart.max() < 0.12 * image[0].sum()


def test_a_spot_off_the_middle_moves_on_a_circle():
    image = disc(row=15.0, radius=4.0).expand(8, -1, -1, -1)
    changed, masks = change(image, rotation=180)
    places = torch.stack([one[0].nonzero().float().mean(0) for one in changed]) - 31.5
    assert torch.allclose(places.norm(dim=1), torch.tensor(16.5), atol=0.5)
    assert places.std(dim=0).min() > 3
    assert torch.equal(changed, masks)


def test_scale_changes_the_area_by_its_square_and_stays_in_its_range():
    image = disc().expand(64, -1, -1, -1)
    areas = change(image, scale=(0.8, 1.2))[0].sum(dim=(1, 2, 3)) / image[0].sum()
    assert areas.min() > 0.6
    assert areas.max() < 1.5
    assert areas.min() < 0.75
    assert areas.max() > 1.3


def test_shear_keeps_the_area_and_slants():
    square = torch.zeros(32, 1, 64, 64)
    square[:, :, 22:42, 22:42] = 1
    changed, _ = change(square, shear=30)
    assert torch.allclose(changed.sum(dim=(1, 2, 3)), torch.tensor(400.0), rtol=0.06)
    top, bottom = (changed[:, 0, row].argmax(dim=1) for row in (23, 40))
    assert (top - bottom).abs().max() >= 8


def test_flip_exchanges_left_and_right_in_about_half():
    image = disc(column=10.0).expand(64, -1, -1, -1)
    right = change(image, flip=True)[0][:, 0, :, 32:].sum(dim=(1, 2)) > 0
    assert 20 < right.sum() < 44


def test_intensities_change_in_the_image_alone_and_not_in_the_background():
    image = disc().expand(8, -1, -1, -1) * 3
    changed, masks = change(image, gain=0.2, offset=0.5)
    inside = changed[:, 0, 31, 31]
    assert inside.unique().numel() == 8
    assert ((inside - 3).abs() <= 3 * 0.2 + 0.5 + 1e-5).all()
    assert torch.equal(changed == 0, image == 0)
    assert torch.equal(masks, (image > 0).float())


def test_the_same_generator_gives_the_same_batch_and_every_sample_its_own_change():
    image = torch.randn(1, 1, 32, 32).expand(3, -1, -1, -1)
    first, second = (Augmentation()(image, image, generator=torch.Generator().manual_seed(1))[0] for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("wrong", [{"rotation": 200}, {"shear": 90}, {"scale": (0, 1)}, {"gain": 1.0}, {"offset": -1}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(UserError):
        Augmentation(**wrong)


def some_slices(count, owner="a"):
    images = torch.arange(count, dtype=torch.float32).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return DomainSlices(images, images, tuple(f"{owner}{index // 2}" for index in range(count)))


def epoch(pool, seed=0, **settings):
    generator = torch.Generator().manual_seed(seed)
    return list(draw_epoch(pool, **({"batch_size": 8, "mixing": "random"} | settings), generator=generator))


def test_random_batches_hold_what_chance_puts_there_and_every_slice_comes_once():
    batches = epoch({"flair": some_slices(40), "t1": some_slices(40)})
    assert len(batches) == 10
    sizes = {len(draw.indices["flair"]) for draw in batches}
    assert len(sizes) > 1
    seen = Counter(index for draw in batches for index in draw.indices["flair"])
    assert seen == Counter(range(40))


def test_the_rarer_domain_is_repeated_at_random_until_both_are_of_one_size():
    batches = epoch({"flair": some_slices(10), "t1": some_slices(40)})
    seen = Counter(index for draw in batches for index in draw.indices["flair"])
    assert set(seen) == set(range(10))
    assert sum(seen.values()) == 40
    assert len(set(seen.values())) > 1
    assert Counter(index for draw in batches for index in draw.indices["t1"]) == Counter(range(40))


def test_balanced_batches_hold_as_many_of_each_domain_and_the_last_is_dropped_if_incomplete():
    batches = epoch({"flair": some_slices(10), "t1": some_slices(19)}, mixing="balanced")
    assert len(batches) == 4
    assert all(len(draw.indices[name]) == 4 for draw in batches for name in ("flair", "t1"))
    with pytest.raises(UserError, match="a size that 2 domains divide; got 7"):
        epoch({"flair": some_slices(10), "t1": some_slices(19)}, mixing="balanced", batch_size=7)


def test_an_absent_domain_is_left_out_and_the_subjects_are_named():
    pool = {"flair": some_slices(1, "f"), "t1": some_slices(40, "t")}
    batches = epoch(pool | {"flair": some_slices(40, "f")}, batch_size=2)
    alone = next(draw for draw in batches if not draw.indices["flair"])
    assert set(alone.gather(pool | {"flair": some_slices(40, "f")})) == {"t1"}
    assert alone.describe(pool).startswith("t1: t")


def test_the_seed_settles_the_order():
    pool = {"flair": some_slices(16), "t1": some_slices(16)}
    assert epoch(pool, seed=1) == epoch(pool, seed=1)
    assert epoch(pool, seed=1) != epoch(pool, seed=2)


def test_too_few_slices_for_a_batch_are_refused():
    with pytest.raises(UserError, match="batches of 8 need more slices; the training subjects have 3 a domain"):
        epoch({"flair": some_slices(3), "t1": some_slices(3)})


def test_slices_are_found_by_their_owner():
    pool = some_slices(6)
    assert pool.of(("a1",)).images[:, 0, 0, 0].tolist() == [2, 3]
    assert {name: len(pair[0]) for name, pair in pool.by_subject().items()} == {"a0": 2, "a1": 2, "a2": 2}
