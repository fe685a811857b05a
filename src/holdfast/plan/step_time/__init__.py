"""Step-time model: compute, communication, pipeline."""
