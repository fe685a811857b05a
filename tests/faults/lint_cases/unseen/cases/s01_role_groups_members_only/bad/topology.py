"""Process layout of the preference tuner.

The run is described by a list of roles.  Every role owns some global ranks and
gets a communicator of its own, so that e.g. the critics can average their
value heads without involving anybody else.
"""
from __future__ import annotations

import datetime
import logging
from dataclasses import dataclass, field
from typing import Dict, Iterable, Iterator, List, Mapping, Optional

import torch.distributed as dist

logger = logging.getLogger("tuner.topology")


@dataclass(frozen=True)
class Role:
    name: str
    ranks: tuple
    backend: Optional[str] = None

    def __post_init__(self):
        if not self.ranks:
            raise ValueError(f"role {self.name!r} owns no rank")
        if len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"role {self.name!r} lists a rank twice")

    @property
    def active(self) -> bool:
        return dist.get_rank() in self.ranks  # RELATED: taint-source

    @property
    def leader(self) -> int:
        return min(self.ranks)


@dataclass
class Layout:
    """Parsed form of the ``roles:`` block of the configuration."""

    roles: List[Role] = field(default_factory=list)

    @classmethod
    def parse(cls, block: Mapping[str, Iterable[int]], world_size: int) -> "Layout":
        roles = []
        for name in sorted(block):
            ranks = tuple(sorted(r % world_size for r in block[name]))
            roles.append(Role(name, ranks))
        return cls(roles)

    def __iter__(self) -> Iterator[Role]:
        return iter(self.roles)

    def mine(self) -> List[Role]:
        return [role for role in self.roles if role.active]

    def describe(self) -> str:
        return ", ".join(f"{r.name}={list(r.ranks)}" for r in self.roles)


class Communicators:
    """Name -> process group, as far as this process takes part."""

    def __init__(self, layout: Layout, timeout_s: float = 20.0):
        self.layout = layout
        self.timeout = datetime.timedelta(seconds=timeout_s)
        self._groups: Dict[str, dist.ProcessGroup] = {}

    def _open(self, role: Role) -> dist.ProcessGroup:
        logger.debug("opening communicator %s over %s", role.name, role.ranks)
        return dist.new_group(list(role.ranks), timeout=self.timeout, backend=role.backend)  # RELATED: hidden-collective

    def connect(self) -> "Communicators":
        for role in self.layout.mine():  # RELATED: guard
            self._groups[role.name] = self._open(role)  # EXPECT: group-create-divergence
        if dist.get_rank() == 0:
            logger.info("layout: %s", self.layout.describe())
        return self

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def __getitem__(self, name: str) -> dist.ProcessGroup:
        try:
            return self._groups[name]
        except KeyError:
            raise KeyError(f"rank {dist.get_rank()} takes no part in role {name!r}") from None
