"""Reads what a run folder holds: live state, series, ledger, incidents."""
