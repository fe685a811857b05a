"""DATA: Input pipeline."""
