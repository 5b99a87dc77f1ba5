"""Files as they lie on disk: what is damaged, larger than it says or no file at all is one line, at little cost."""

import gzip
import os
import socket
import tracemalloc
from contextlib import suppress

import nibabel
import numpy as np
import pytest

import heads
from steelyard.errors import UserError
from steelyard.imaging.scans.nifti import read_header
from steelyard.imaging.scans.volumes import read_mask, read_scan

SHAPE = (24, 26, 20)
VOXELS = (np.random.default_rng(0).random(SHAPE) * 1000).astype(np.int16)
AFFINE = np.diag([4.0, 4.0, 4.0, 1.0])
PLAIN = nibabel.Nifti1Image(VOXELS, AFFINE).to_bytes()
PACKED = gzip.compress(PLAIN, compresslevel=1)


def with_header(**fields):
    """The bytes of a scan with some fields of its header changed; `dim_1` is an entry of `dim`."""
    header = nibabel.Nifti1Header(PLAIN[:348], check=False)
    for field, value in fields.items():
        name, _, index = field.rpartition("_")
        if index.isdigit():
            header[name][int(index)] = value
        else:
            header[field] = value
    return header.binaryblock + PLAIN[348:]


def save(path, content):
    path.write_bytes(content)
    return path


def refused(path, match):
    with pytest.raises(UserError, match=match) as caught:
        read_scan(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("position", [-8, -4])
def test_a_wrong_checksum_or_length_is_refused(tmp_path, position):
    content = bytearray(PACKED)
    content[position] ^= 1
    refused(save(tmp_path / "a.nii.gz", bytes(content)), "cut short or damaged")


def test_every_flipped_bit_of_a_compressed_scan_is_noticed(tmp_path):
    generator = np.random.default_rng(1)
    for index in generator.integers(10, len(PACKED), size=60):  # the first ten bytes say when and by whom
        content = bytearray(PACKED)
        content[index] ^= 1 << generator.integers(8)
        path = save(tmp_path / "a.nii.gz", bytes(content))
        with pytest.raises(UserError):
            read_scan(path)


@pytest.mark.parametrize("tail", [b"", bytes(100)])
def test_members_in_a_row_are_one_file_and_zeros_after_them_are_padding(tmp_path, tail):
    content = gzip.compress(PLAIN[:3000]) + gzip.compress(PLAIN[3000:]) + tail
    assert np.array_equal(read_scan(save(tmp_path / "a.nii.gz", content)).voxels, VOXELS)


def test_what_follows_a_compressed_scan_is_damage(tmp_path):
    refused(save(tmp_path / "a.nii.gz", PACKED + b"garbage"), "cut short or damaged")


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
@pytest.mark.parametrize(
    ("content", "match"),
    [
        (PLAIN[:-1], "declares 24960 bytes of voxels, 24959 are there"),
        (PLAIN + bytes(10_000), "holds more than the 24960 bytes"),
        (
            with_header(dim_1=32767, dim_2=32767, dim_3=32767),
            "35181151.0 million voxels; at most 150 million.*--largest",
        ),
        (with_header(dim_2=-26), "three-dimensional volume is needed; this is 24×-26×20"),
        (with_header(dim_1=12), "holds more than the 12480 bytes"),
        (with_header(dim_0=0), "this is no NIfTI|three-dimensional"),
        (with_header(vox_offset=np.inf), "cannot begin at byte inf"),
        (with_header(vox_offset=np.nan), "cannot begin at byte nan"),
        (with_header(vox_offset=1e30), "cannot begin at byte 1e"),
        (with_header(vox_offset=-5), "cannot begin at byte -5"),
        (with_header(vox_offset=0), "cannot begin at byte 0"),
        (with_header(datatype=128, bitpix=24, scl_slope=2), "plain numbers are needed"),
        (with_header(datatype=32, bitpix=64), "plain numbers are needed; the voxels are of type complex64"),
        (with_header(datatype=255), "data code 255 not supported"),
        (with_header(datatype=0), "no NIfTI image"),
        (with_header(scl_slope=np.inf), "scaled by inf"),
        (with_header(scl_slope=1, scl_inter=np.nan), "shifted by nan"),
        (with_header(scl_slope=3e38), "NaN or infinite"),
        (with_header(sform_code=0, pixdim_1=0), "voxels of 0×4×4 mm .* no sform"),
        (with_header(sform_code=0, qform_code=1, pixdim_2=-4), "voxels of 4×-4×4 mm"),
        (with_header(sform_code=0, qform_code=1, pixdim_3=np.nan), "voxels of 4×4×nan mm"),
        (with_header(sform_code=99, pixdim_1=0), "no sform"),
        (with_header(sform_code=0, qform_code=1, quatern_b=5), "affine is absurd"),
        (b"", "no NIfTI image"),
        (b"a note about the scan", "no NIfTI image"),
    ],
)
def test_damaged_headers_are_one_line(tmp_path, ending, content, match):
    path = save(tmp_path / f"a{ending}", gzip.compress(content) if ending == ".nii.gz" else content)
    refused(path, match)


def test_a_pixdim_of_zero_does_not_matter_beside_an_sform(tmp_path):
    assert read_scan(save(tmp_path / "a.nii", with_header(pixdim_1=0))).spacing == (4.0, 4.0, 4.0)


def test_a_file_that_unpacks_to_far_more_than_it_declares_takes_little_memory(tmp_path):
    path = save(tmp_path / "a.nii.gz", gzip.compress(PLAIN) + gzip.compress(bytes(2**26)) * 4)
    tracemalloc.start()
    try:
        refused(path, "holds more than the 24960 bytes")
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()


def test_the_limit_can_be_raised_and_lowered(tmp_path):
    path = save(tmp_path / "a.nii", PLAIN)
    assert read_scan(path, most_voxels=VOXELS.size).voxels.size == VOXELS.size
    for read in (read_scan, read_mask):
        with pytest.raises(UserError, match=r"24×26×20 are 0\.0 million voxels; at most 0\.01 million"):
            read(path, most_voxels=10_000)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_pipes_devices_sockets_and_folders_are_refused_unopened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.nii.gz")
    (tmp_path / "device.nii").symlink_to("/dev/zero")
    (tmp_path / "folder.nii").mkdir()
    (tmp_path / "circle.nii").symlink_to(tmp_path / "circle.nii")
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.nii")
        for name in ("pipe.nii.gz", "device.nii", "socket.nii"):
            refused(tmp_path / name, "cannot be read, not a regular file")
    refused(tmp_path / "folder.nii", "is a directory")
    refused(tmp_path / "circle.nii", "symbolic links")
    refused(tmp_path / "absent.nii", "there is no such file")


@pytest.mark.parametrize("kind", [np.uint8, np.int16, ">i2", np.int32, np.float32, ">f4", np.float64])
@pytest.mark.parametrize("scaling", [None, (0.37, -3.1), (1.0, 5.0), (2.0, 0.0)])
@pytest.mark.parametrize("form", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_voxels_and_place_are_those_that_nibabel_reads(tmp_path, kind, scaling, form):
    image = form((VOXELS % 200).astype(kind), heads.AFFINE, dtype=kind)
    content = bytearray(image.to_bytes())
    header = type(image.header)(bytes(content[: image.header.sizeof_hdr]))
    if scaling is not None:
        header["scl_slope"], header["scl_inter"] = scaling
    content[: image.header.sizeof_hdr] = header.binaryblock
    path = save(tmp_path / "a.nii.gz", gzip.compress(bytes(content), compresslevel=1))
    expected = nibabel.load(path)
    volume = read_scan(path)
    assert np.array_equal(volume.voxels, np.asanyarray(expected.dataobj).astype(np.float32))
    assert volume.voxels.flags.f_contiguous
    assert np.array_equal(volume.affine, expected.affine)
    for field in ("qform_code", "sform_code", "srow_x", "srow_y", "srow_z", "quatern_b", "qoffset_x", "pixdim"):
        assert np.array_equal(read_header(path)[field], expected.header[field])


@pytest.mark.parametrize(
    ("values", "shown"),
    [((0, 1, 2), "0, 1, 2"), ((0, np.nan), "0, nan"), ((1, np.inf), "1, inf"), ((0, np.inf), "0, inf")],
)
def test_masks_of_several_values_are_refused(tmp_path, values, shown):
    voxels = np.resize(np.array(values, dtype=np.float32), SHAPE)
    path = save(tmp_path / "a.nii", nibabel.Nifti1Image(voxels, AFFINE).to_bytes())
    with pytest.raises(UserError, match=f"one other value; this holds {shown}"):
        read_mask(path)


def test_randomly_damaged_headers_never_surprise(tmp_path):
    generator = np.random.default_rng(2)
    path = tmp_path / "a.nii"
    for _ in range(300):
        content = bytearray(PLAIN)
        for index in generator.integers(0, 348, size=3):
            content[index] = generator.integers(256)
        save(path, bytes(content))
        for read in (read_scan, read_mask):
            with suppress(UserError):
                read(path)
