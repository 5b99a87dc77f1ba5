"""From a scan of a head to its lesions: mask, probabilities, volumes, a picture and a page."""

from steelyard.imaging.predict.cohort import predict
from steelyard.imaging.predict.options import Options
from steelyard.imaging.predict.pipeline import Prediction, predict_scan
from steelyard.imaging.predict.scans import Scan, find_scans
from steelyard.imaging.predict.trained_network import TrainedNetwork, load_trained_network
from steelyard.processes.workers import JobResult

__all__ = [
    "JobResult",
    "Options",
    "Prediction",
    "Scan",
    "TrainedNetwork",
    "find_scans",
    "load_trained_network",
    "predict",
    "predict_scan",
]
