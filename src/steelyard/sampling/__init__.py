"""Batches of several domains: how many samples of each domain, which ones, and what that means for the weights.

The files, in the order in which a batch comes about: `shares` says what part of a batch each domain should have,
`composition` makes whole numbers of it, `passes` and `streams` say which samples those are, `draws` keeps count so that
a run can be resumed, `fetching` reads the samples (in workers), and `loader` is what a training loop sees.
"""

from steelyard.sampling.domain_batch import DomainBatch
from steelyard.sampling.loader import DomainLoader

__all__ = ["DomainBatch", "DomainLoader"]
