"""Joins probe and weighting in a training loop of the user's own."""

from steelyard.training.balancer import Balancer, Step
from steelyard.training.domain_losses import DomainLosses

__all__ = ["Balancer", "DomainLosses", "Step"]
