"""``holdfast.loader_settings``: how a script loads data, as its user or a preset chose."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from holdfast.core import settings
from holdfast.core.errors import InvalidValue
from holdfast.core.keyword_hints import suggest_keywords

_log = logging.getLogger("holdfast.loop")
#: Field -> its variable.
_VARIABLES = {
    "cache": "HOLDFAST_LOADER_CACHE",
    "prefetch": "HOLDFAST_LOADER_PREFETCH",
    "workers": "HOLDFAST_LOADER_WORKERS",
    "micro_batches": "HOLDFAST_MICRO_BATCHES",
}


@dataclass(frozen=True)
class LoaderSettings:
    """How to load data.

    ``cache``: keep the dataset in device memory; ``prefetch``: batches to prepare in advance;
    ``workers``: loader processes of each rank; ``micro_batches``: parts of a rank's batch.
    ``origins`` says where each value is from: the script, the environment (which includes a
    preset), or the default.
    """

    cache: bool
    prefetch: int
    workers: int
    micro_batches: int
    origins: dict[str, str]

    def loader_options(self) -> dict[str, Any]:
        """Return the arguments of a DataLoader: workers, and the batches that each prepares."""
        if not self.workers:
            return {"num_workers": 0}
        options: dict[str, Any] = {"num_workers": self.workers, "persistent_workers": True}
        if self.prefetch:
            options["prefetch_factor"] = -(-self.prefetch // self.workers)
        return options

    def __str__(self) -> str:
        cache = "in device memory" if self.cache else "off"
        values = {**vars(self), "cache": cache}
        return ", ".join(
            f"{name.replace('_', '-')} {values[name]} ({self.origins[name]})" for name in _VARIABLES
        )


@suggest_keywords
def loader_settings(
    *,
    cache: bool | None = None,
    prefetch: int | None = None,
    workers: int | None = None,
    micro_batches: int | None = None,
) -> LoaderSettings:
    """Return how to load data; values that the script passes win::

        settings = holdfast.loader_settings(workers=options.num_workers)
        loader = DataLoader(dataset, batch_size=64, **settings.loader_options())

    A value that is None is taken from the environment, which ``--preset`` of ``holdfast run``
    completes (HOLDFAST_LOADER_CACHE, HOLDFAST_LOADER_PREFETCH, HOLDFAST_LOADER_WORKERS,
    HOLDFAST_MICRO_BATCHES), else from the defaults: no cache, prefetching or workers, and one
    micro-batch. Pass ``micro_batches`` on to ``holdfast.loop``. Data in device memory needs no
    workers: with ``cache``, there are none unless the script passes a number.

    Raises:
        InvalidValue: a value, or a variable, is invalid.
    """
    passed = {"cache": cache, "prefetch": prefetch, "workers": workers}
    passed["micro_batches"] = micro_batches
    values: dict[str, Any] = {}
    origins = {}
    for name, variable in _VARIABLES.items():
        values[name], origins[name] = _read(name, variable, passed[name])
    if values["cache"] and values["workers"] and workers is None:
        values["workers"], origins["workers"] = 0, "the data is on the device"
    chosen = LoaderSettings(**values, origins=origins)
    _log.info("loader settings: %s", chosen)
    return chosen


def _read(name: str, variable: str, passed: float | None) -> tuple[int | bool, str]:
    """Return the value and its origin."""
    if passed is None:
        reading = settings.read_setting(variable)
        value = reading.value == "device" if name == "cache" else int(str(reading.value))
        return value, reading.origin
    if name == "cache":
        return bool(passed), "script"
    least = settings.SETTINGS[variable].minimum or 0
    if isinstance(passed, bool) or not isinstance(passed, int) or passed < least:
        raise InvalidValue(
            f"loader_settings({name}={passed!r})", why=f"it must be an integer of at least {least}"
        )
    return passed, "script"
