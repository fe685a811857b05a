"""TEMPORARY placeholder, to be overwritten by the facts helper's module."""
from holdfast.facts.ranks import Place
from holdfast.findings import Unknown
class Surroundings: ...
def surroundings(place: Place) -> Surroundings | Unknown:
    return Unknown("not there yet")
