"""From raw scans to training data: alignment, N4, brain extraction, WhiteStripe."""

from steelyard.imaging.preprocess.cohort import preprocess
from steelyard.imaging.preprocess.pipeline import PreparedScan, PreparedSubject, prepare
from steelyard.imaging.preprocess.settings import Settings
from steelyard.processes.workers import JobResult

__all__ = ["JobResult", "PreparedScan", "PreparedSubject", "Settings", "prepare", "preprocess"]
