"""The history store: runs, incidents, decisions and slow collectives of a project in a database.

A SQLite file beside the run folders, or a PostgreSQL database. ``run_records`` reads a run folder,
``index`` writes it to the store, ``queries`` and ``cost`` read it, ``background`` is what
``holdfast run`` uses. sqlalchemy and alembic are extras: only ``background`` and ``location`` can
be imported without them.
"""
