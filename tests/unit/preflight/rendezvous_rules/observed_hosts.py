"""Observations of several hosts: all OK, unless specified otherwise."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.preflight.rendezvous import (
    ClockOffset,
    ConnectAttempt,
    ConnectOutcome,
    EndpointAccess,
    InterfaceAddress,
    LinkMeasurement,
    Observations,
    Participant,
    Peer,
    ProbeResult,
    PublishedAddress,
)


def peer(number, nodes, **different):
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    return replace(
        Peer(
            key=f"k{number}",
            node=number,
            nodes=nodes,
            host=f"h{number}",
            name=f"h{number}",
            machine=f"m{number}",
            version="1",
            endpoint="h0:29500",
            interfaces=(InterfaceAddress("eth0", address, 1500),),
            published=(
                PublishedAddress(
                    library="gloo",
                    address=address,
                    interface="eth0",
                    why="the host's own name resolves to it",
                ),
            ),
        ),
        **different,
    )


def access(outcome=ConnectOutcome.OPEN, side=ConnectOutcome.REFUSED, **different):
    known = {
        "host": "h0",
        "port": 29500,
        "addresses": ("10.0.0.0",),
        "source": "10.0.0.1",
        "interface": "eth0",
        "main": ConnectAttempt(address="10.0.0.0", port=29500, outcome=outcome),
        "side": (ConnectAttempt(address="10.0.0.0", port=29510, outcome=side),),
    }
    return EndpointAccess(**known | different)


def observations(size, nodes=None, **different):
    nodes = nodes or size
    leader = Participant(
        number=0,
        peer=peer(0, nodes),
        access=access(main=None, side=(), owned=True, bound="listening"),
        leads=True,
    )
    present = [
        leader,
        *(
            Participant(
                number=at,
                peer=peer(at, nodes),
                access=access(side=ConnectOutcome.OPEN),
                probe_port=40_000 + at,
            )
            for at in range(1, size)
        ),
    ]
    return Observations(nodes=nodes, waited_s=10.0, participants=tuple(present), **different)


def probe_result(source, target, outcome, purpose="data", port=40_000, **different):
    attempt = ConnectAttempt(
        address=f"10.0.0.{target}", port=port, outcome=outcome, elapsed_s=3.2, **different
    )
    return ProbeResult(source=source, target=target, purpose=purpose, attempt=attempt)


def link(source, target, speed=1e9, **different):
    return replace(
        LinkMeasurement(source=source, target=target, round_trip_s=1e-4, forth=speed, back=speed),
        **different,
    )


def clocks(*ahead_s):
    return tuple(ClockOffset(number, ahead, 1e-4) for number, ahead in enumerate(ahead_s))


def with_peer(observed, number, **different):
    """Return the observations with one peer changed."""
    present = list(observed.participants)
    present[number] = replace(present[number], peer=replace(present[number].peer, **different))
    return replace(observed, participants=tuple(present))


def with_access(observed, number, new_access):
    """Return the observations with another endpoint access of one peer."""
    present = list(observed.participants)
    present[number] = replace(present[number], access=new_access)
    return replace(observed, participants=tuple(present))
