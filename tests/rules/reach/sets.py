"""Sets of hosts as a leader gathers them: all well, unless something is said to be otherwise."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.facts.reach import (
    Approach,
    Attempt,
    Clock,
    Copy,
    Crossing,
    Fate,
    Gathered,
    Interface,
    Link,
    Present,
    Published,
)  # fmt: skip


def copy(number, nodes, **different):
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    return replace(
        Copy(
            key=f"k{number}", node=number, nodes=nodes, host=f"h{number}", name=f"h{number}", machine=f"m{number}",
            version="1", endpoint="h0:29500", interfaces=(Interface("eth0", address, 1500),),
            published=(Published(who="gloo", address=address, interface="eth0", why="the own name means it"),),
        ),
        **different,
    )  # fmt: skip


def approach(fate=Fate.OPEN, side=Fate.REFUSED, **different):
    known = {
        "host": "h0", "port": 29500, "addresses": ("10.0.0.0",), "source": "10.0.0.1", "interface": "eth0",
        "main": Attempt(address="10.0.0.0", port=29500, fate=fate),
        "side": (Attempt(address="10.0.0.0", port=29510, fate=side),),
    }  # fmt: skip
    return Approach(**known | different)


def gathered(size, nodes=None, **different):
    nodes = nodes or size
    led = Present(
        number=0, copy=copy(0, nodes), approach=approach(main=None, side=(), owned=True, bound="listening"), leads=True
    )
    present = [led, *(Present(number=at, copy=copy(at, nodes), approach=approach(side=Fate.OPEN), door=40_000 + at)
                      for at in range(1, size))]  # fmt: skip
    return Gathered(nodes=nodes, waited_s=10.0, present=tuple(present), **different)


def crossing(source, target, fate, purpose="data", port=40_000, **different):
    attempt = Attempt(address=f"10.0.0.{target}", port=port, fate=fate, elapsed_s=3.2, **different)
    return Crossing(source=source, target=target, purpose=purpose, attempt=attempt)


def link(source, target, speed=1e9, **different):
    return replace(Link(source=source, target=target, round_trip_s=1e-4, forth=speed, back=speed), **different)


def clocks(*ahead_s):
    return tuple(Clock(number, ahead, 1e-4) for number, ahead in enumerate(ahead_s))


def with_copy(found, number, **different):
    """The same set, with one copy that is different."""
    present = list(found.present)
    present[number] = replace(present[number], copy=replace(present[number].copy, **different))
    return replace(found, present=tuple(present))


def with_approach(found, number, way):
    """The same set, with one copy that came another way."""
    present = list(found.present)
    present[number] = replace(present[number], approach=way)
    return replace(found, present=tuple(present))
