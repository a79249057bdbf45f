"""Measurements of the project beside plain alternatives, each over one run."""
