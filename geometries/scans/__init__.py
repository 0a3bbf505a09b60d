"""Measured scans: reading files, flat-field correction, editing detectors, finding the axis."""
