"""Schema migrations of the history store, run by alembic: ``env.py`` and ``versions``."""
