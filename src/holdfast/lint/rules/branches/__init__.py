"""Rules for branches, loops and handlers that only some ranks enter."""
