"""Runs, starts of workers, incidents and decisions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    _create_runs()
    _create_incidents()


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("name", sa.Text, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("folder", "command", "host")),
        sa.Column("began", sa.Double, nullable=False, index=True),
        sa.Column("seen", sa.Double, nullable=False),
        sa.Column("ended", sa.Double),
        sa.Column("status", sa.Integer),
        sa.Column("world_size", sa.Integer, nullable=False),
        sa.Column("nodes", sa.Integer, nullable=False),
    )
    op.create_table(
        "starts",
        sa.Column("run", sa.Text, sa.ForeignKey("runs.name", ondelete="CASCADE"), primary_key=True),
        sa.Column("generation", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("world_size", sa.Integer, nullable=False),
        sa.Column("nodes", sa.Integer, nullable=False),
    )


def _create_incidents() -> None:
    op.create_table(
        "incidents",
        sa.Column("run", sa.Text, sa.ForeignKey("runs.name", ondelete="CASCADE"), primary_key=True),
        sa.Column("at", sa.Double, primary_key=True, index=True),
        sa.Column("generation", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False, index=True),
        sa.Column("level", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("rank", sa.Integer),
        sa.Column("host", sa.Text),
        sa.Column("file", sa.Text),
        sa.Column("line", sa.Integer),
        sa.Column("hang", sa.Boolean, nullable=False),
        sa.Column("preempted", sa.Boolean, nullable=False),
        sa.Column("dead", sa.JSON, nullable=False),
        sa.Column("world_size", sa.Integer, nullable=False),
        sa.Column("step", sa.Integer),
        sa.Column("saved", sa.Integer),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("progressed", sa.Double, nullable=False),
        sa.Column("saved_at", sa.Double),
        sa.Column("recovered", sa.Double),
        sa.Column("folder", sa.Text),
    )
    op.create_table(
        "decisions",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("at", sa.Double, primary_key=True),
        sa.Column("generation", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("excluded", sa.JSON, nullable=False),
        sa.Column("suspects", sa.JSON, nullable=False),
        sa.Column("delay_s", sa.Double, nullable=False),
        sa.Column("status", sa.Integer),
        sa.ForeignKeyConstraint(
            ["run", "at", "generation"],
            ["incidents.run", "incidents.at", "incidents.generation"],
            ondelete="CASCADE",
        ),
    )
