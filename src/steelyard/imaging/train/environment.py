"""What a run ran on."""

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import steelyard

_PACKAGES = ("torch", "numpy", "scipy", "lightning", "nibabel", "SimpleITK", "deepbet", "safetensors", "monai")


def describe_environment() -> dict[str, Any]:
    """Return versions, machine and, in a checkout, the state of git."""
    return {
        "steelyard": steelyard.__version__,
        "python": sys.version.split()[0],
        "packages": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "machine": f"{platform.system()} {platform.machine()}",
        "git": _git_state(),
    }


def describe_accelerator(device: torch.device, *, devices: int = 1) -> dict[str, Any]:
    """Return what kind of device does the work, how many of them, and its name where torch knows one.

    >>> describe_accelerator(torch.device("cpu"), devices=2)
    {'kind': 'cpu', 'devices': 2}
    """
    told: dict[str, Any] = {"kind": device.type, "devices": devices}
    return told | {"name": torch.cuda.get_device_name(device)} if device.type == "cuda" else told


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_state() -> dict[str, Any] | None:
    """Return commit and whether files differ from it; none outside a checkout of ours."""
    root = Path(__file__).parents[4]
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    return None if commit is None else {"commit": commit, "modified": bool(_git(root, "status", "--porcelain"))}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603
            ["git", *arguments],  # noqa: S607
            cwd=root,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
