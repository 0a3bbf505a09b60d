"""Test material: phantoms with exact line integrals, noise of detectors, and measures of error."""
