"""Data sets and measurement, above the pipeline and the reader."""
