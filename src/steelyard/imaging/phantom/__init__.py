"""Synthetic T1w and FLAIR heads with white matter hyperintensities, from what pip installed.

`write_cohort` writes a BIDS dataset; `simulate` makes one subject in memory.
"""

from steelyard.imaging.phantom.dataset import Cohort, write_cohort
from steelyard.imaging.phantom.scanner import SCANNERS, Scanner, scanner_named
from steelyard.imaging.phantom.subject import SimulatedScan, SimulatedSubject, simulate, traits_of, ventricles_of

__all__ = [
    "SCANNERS",
    "Cohort",
    "Scanner",
    "SimulatedScan",
    "SimulatedSubject",
    "scanner_named",
    "simulate",
    "traits_of",
    "ventricles_of",
    "write_cohort",
]
