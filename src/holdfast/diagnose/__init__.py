"""Offline and attached diagnosis: evidence, logs, dumps, stacks, redaction, bundles."""
