from dataclasses import dataclass, field

FORCING = {"hgtsfc", "land_fraction", "ocean_fraction", "dswrf_toa"}
PROGNOSTIC = {"pressfc", "tmp_surface", "air_temperature_0", "air_temperature_7", "specific_total_water_0"}


@dataclass
class VariableSpec:
    """Which channels the emulator reads and which it predicts."""

    forcing: set = field(default_factory=lambda: set(FORCING))
    prognostic: set = field(default_factory=lambda: set(PROGNOSTIC))
    excluded: set = field(default_factory=set)

    @property
    def names(self):
        return list((self.forcing | self.prognostic) - self.excluded)
