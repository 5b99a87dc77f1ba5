"""From raw scans to training data: alignment, N4, brain extraction, WhiteStripe."""

from steelyard.imaging.preprocessing.cohort import preprocess
from steelyard.imaging.preprocessing.pipeline import Channel, Prepared, prepare
from steelyard.imaging.preprocessing.settings import Settings
from steelyard.imaging.workers import Outcome

__all__ = ["Channel", "Outcome", "Prepared", "Settings", "prepare", "preprocess"]
