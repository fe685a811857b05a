"""Run the migrations on the connection and in the transaction of the caller."""

from alembic import context

from holdfast.serve.store.tables import StoreBase

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=StoreBase.metadata,
    transactional_ddl=True,
)
context.run_migrations()
