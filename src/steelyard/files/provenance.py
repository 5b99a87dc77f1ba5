"""What a result was made from and by: digests of files, versions of packages."""

import platform
from hashlib import file_digest
from importlib.metadata import version
from pathlib import Path

from steelyard.files.regular_files import open_regular

_PACKAGES = ("steelyard", "SimpleITK", "deepbet", "nibabel", "numpy", "scipy", "torch")


def digest(path: Path) -> str:
    """Return the SHA-256 of a regular file."""
    with open_regular(path) as stream:
        return file_digest(stream, "sha256").hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of what computed the result."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
