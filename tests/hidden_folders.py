"""Folders of tests that look like packages.

pytest puts the folders of test files on the path. So tests/imaging/datasets would pass for the package `datasets`,
which transformers uses where it finds it. Ranks, which are processes of their own, import this module as well.
"""

import sys
from importlib.metadata import PackageNotFoundError, version

try:
    version("datasets")
except PackageNotFoundError:
    sys.modules["datasets"] = None  # as if there were none
