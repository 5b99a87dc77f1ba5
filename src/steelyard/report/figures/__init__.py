"""Figures of one or more panels, written as SVG and PNG and shown on the page."""
