"""One module a schema version, ``vNNNN_CHANGE.py``; a released one never changes."""
