"""Joins probe and weighting in a training loop of the user's own."""

from steelyard.training.audit import Audit
from steelyard.training.balancer import Balancer, StepReport
from steelyard.training.domain_losses import DomainLosses

__all__ = ["Audit", "Balancer", "DomainLosses", "StepReport"]
