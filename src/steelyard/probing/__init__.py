"""Model and batches in, one number per domain out. A probe leaves model, optimizer and random numbers unchanged."""

from steelyard.probing.first_order import FirstOrder
from steelyard.probing.gramian import Gramian
from steelyard.probing.inner_loop import InnerLoop
from steelyard.probing.probe import Finding, Losses, Probe, Shared

__all__ = ["Finding", "FirstOrder", "Gramian", "InnerLoop", "Losses", "Probe", "Shared"]
