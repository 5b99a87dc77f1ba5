"""Model and batches in, one number per domain out. A probe leaves model, optimizer and random numbers as found."""

from steelyard.probing.inner_loop import InnerLoop
from steelyard.probing.probe import Losses, Probe

__all__ = ["InnerLoop", "Losses", "Probe"]
