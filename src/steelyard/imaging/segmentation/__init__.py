"""Segmentation of white matter hyperintensities: training, evaluation, and networks to predict with."""
