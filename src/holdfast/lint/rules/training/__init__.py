"""Rules for data loading, metrics, seeds and devices."""
