"""Shared types and formats: findings, errors, settings, versioned documents, trace files."""
