"""Joins probe and weighting in a training loop of the user's own."""

from steelyard.training.audit import Audit
from steelyard.training.balancer import Balancer
from steelyard.training.domain_losses import DomainLosses
from steelyard.training.paper import paper_balancer
from steelyard.training.step_report import StepReport

__all__ = ["Audit", "Balancer", "DomainLosses", "StepReport", "paper_balancer"]
