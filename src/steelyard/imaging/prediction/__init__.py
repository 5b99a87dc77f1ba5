"""From a scan of a head to its lesions: mask, probabilities, volumes, a picture and a page."""

from steelyard.imaging.prediction.cohort import Network, predict
from steelyard.imaging.prediction.options import Options
from steelyard.imaging.prediction.pipeline import Prediction, predict_scan
from steelyard.imaging.prediction.scans import Scan, find_scans
from steelyard.imaging.prediction.weights import Model, load_model
from steelyard.imaging.workers import Outcome

__all__ = [
    "Model",
    "Network",
    "Options",
    "Outcome",
    "Prediction",
    "Scan",
    "find_scans",
    "load_model",
    "predict",
    "predict_scan",
]
