"""Figures: each is a plate of panels, drawn once and kept as SVG and PNG."""
