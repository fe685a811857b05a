"""Collectives that timed out or were slow."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "slow_collectives",
        sa.Column("operation", sa.Text, primary_key=True),
        sa.Column("group", sa.Text, primary_key=True),
        sa.Column("size", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("phase", sa.Text, primary_key=True),
        sa.Column("link", sa.Text, primary_key=True),
        sa.Column("site", sa.Text, primary_key=True),
        sa.Column("words", sa.Text, nullable=False),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("timeouts", "absent", "slow")
        ),
        *(
            sa.Column(name, sa.Double, nullable=False)
            for name in ("longest_s", "limit_s", "bandwidth")
        ),
        sa.Column("runs", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Double, nullable=False, index=True),
    )
