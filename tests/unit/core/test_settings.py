"""The table of settings: completeness, precedence, parsing, and limits of presets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.generate import PAGES
from holdfast.core import settings
from holdfast.core.errors import InternalError, InvalidValue, UnknownName
from holdfast.core.settings import PRESETS, SETTINGS, SettingKind
from holdfast.core.variable_table import VariableStatus, variable_entries

ROOT = Path(__file__).parents[3]
SOURCES = [path for path in (ROOT / "src").rglob("*") if path.suffix in {".py", ".cpp", ".hpp"}]
NUMBERS = [
    row.name for row in SETTINGS.values() if row.kind in {SettingKind.SECONDS, SettingKind.COUNT}
]


def variables_in(text):
    """Return the variables of holdfast in a source text, without bare prefixes and C++ macros."""
    macros = set(re.findall(r"(?:#define|#ifdef|#ifndef|defined\()\s*(HOLDFAST_\w+)", text))
    return set(re.findall(r"HOLDFAST_[A-Z][A-Z_]*[A-Z]", text)) - macros


def test_every_holdfast_variable_is_in_the_table():
    known = {name for row in SETTINGS.values() for name in (row.name, *row.aliases)}
    unknown = {
        f"{path.name}: {name}"
        for path in SOURCES
        for name in variables_in(path.read_text()) - known
    }
    assert unknown == set()


def test_the_import_check_can_fail():
    assert variables_in(
        'os.environ["HOLDFAST_NO_SUCH"]  # HOLDFAST_ and\n#define HOLDFAST_MACRO'
    ) == {"HOLDFAST_NO_SUCH"}


def test_the_settings_page_matches_the_table():
    assert (ROOT / "docs" / "settings.md").read_text() == PAGES["settings.md"](), "run: make fix"


@pytest.mark.parametrize("row", SETTINGS.values(), ids=lambda row: row.name)
def test_every_row_is_complete(row):
    assert row.effect.endswith(".")
    assert row.owner
    assert row.since
    assert row.too_late
    assert (row.kind == SettingKind.CHOICE) == bool(row.choices)
    if row.default is not None:
        settings.read_setting(row.name, environ={row.name: str(row.default)})


def test_names_are_unique():
    assert len(settings._TABLES.settings) == len(SETTINGS)


def test_precedence_is_flag_environment_preset_default():
    name = "HOLDFAST_STALL_S"
    environ = {name: "7"}
    readings = [
        settings.read_setting(name, flag="3", preset="conservative", environ=environ),
        settings.read_setting(name, preset="conservative", environ=environ),
        settings.read_setting(name, preset="conservative", environ={}),
        settings.read_setting(name, environ={}),
    ]
    assert [(reading.value, reading.origin) for reading in readings] == [
        (3.0, "flag"),
        (7.0, "environment"),
        (30.0, "preset conservative"),
        (5.0, "default"),
    ]


def test_an_empty_variable_counts_as_unset():
    assert settings.read_seconds("HOLDFAST_STALL_S", {"HOLDFAST_STALL_S": ""}) == 5.0
    assert settings.read_path("HOLDFAST_TRACE", {"HOLDFAST_TRACE": ""}) is None


def test_the_process_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("HOLDFAST_RING", "128")
    assert settings.read_count("HOLDFAST_RING") == 128
    assert settings.current_environment()["HOLDFAST_RING"] == "128"


def test_an_invalid_value_is_reported_with_origin_and_expected_values():
    with pytest.raises(
        InvalidValue, match=r"'soon', from the environment, is not a number \(s\) of at least 0\.1"
    ):
        settings.read_seconds("HOLDFAST_STALL_S", {"HOLDFAST_STALL_S": "soon"})
    with pytest.raises(
        InvalidValue, match="from the flag, is not one of auto, native, python, off"
    ):
        settings.read_setting("HOLDFAST_RECORDER", flag="fast")


@pytest.mark.parametrize(
    ("text", "value"), [("90s", 90.0), ("2m", 120.0), ("1.5h", 5400.0), ("5ms", 0.005), ("7", 7.0)]
)
def test_a_time_may_have_a_unit(text, value):
    assert settings.read_seconds("HOLDFAST_ACT_AFTER", {"HOLDFAST_ACT_AFTER": text}) == value


@pytest.mark.parametrize("text", ["2w", "-2m", "m", "2m 3s", "nan"])
def test_an_invalid_time_is_rejected(text):
    with pytest.raises(InvalidValue, match="is not a number"):
        settings.read_seconds("HOLDFAST_ACT_AFTER", {"HOLDFAST_ACT_AFTER": text})


def test_choices_are_case_insensitive():
    assert settings.read_text("HOLDFAST_RECORDER", {"HOLDFAST_RECORDER": "Python"}) == "python"


def test_an_unset_number_raises():
    with pytest.raises(InvalidValue, match=r"WORLD_SIZE.*it is unset"):
        settings.read_count("WORLD_SIZE", {})


def test_unknown_variables_are_internal_errors():
    with pytest.raises(InternalError, match="HOLDFAST_NO_SUCH"):
        settings.read_text("HOLDFAST_" + "NO_SUCH")


@given(
    st.sampled_from(NUMBERS), st.text(min_size=1) | st.floats().map(str) | st.integers().map(str)
)
def test_arbitrary_text_parses_or_raises(name, text):
    try:
        value = settings.read_setting(name, environ={name: text}).value
    except InvalidValue:
        return
    assert float("-inf") < value < float("inf")
    assert SETTINGS[name].minimum is None or value >= SETTINGS[name].minimum


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HOLDFAST_CACHE": "/c"}, Path("/c")),
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/holdfast")),
        ({}, Path.home() / ".cache/holdfast"),
    ],
)
def test_the_cache_folder(environ, folder):
    assert settings.cache_folder(environ) == folder


def test_the_compiler_is_the_users_or_unknown():
    assert settings.compiler_command({"CXX": "clang++"}) == "clang++"
    assert settings.compiler_command({}) is None


# Presets


def gaps(preset, environ=None, **more):
    """Return the variables that a preset sets for a recent torch."""
    more = {"workers": 1, "torch": (2, 13), "environ": environ or {}} | more
    return settings.filled_gaps(settings.preset_readings(preset, **more))


def test_a_preset_fills_gaps():
    assert gaps("basic", {"HOME": "/h"}, workers=4, cores=32) == {
        "OMP_NUM_THREADS": "8",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_never_replaces_what_the_user_set(preset):
    assert gaps(preset, dict.fromkeys(PRESETS[preset], "mine")) == {}


def test_a_preset_respects_aliases():
    own = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    readings = settings.preset_readings("gpu-cache", workers=1, environ=own, torch=(2, 13))
    allocator = next(reading for reading in readings if reading.name == "PYTORCH_ALLOC_CONF")
    assert (allocator.value, allocator.origin) == (
        None,
        "environment, as PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64",
    )
    assert "PYTORCH_ALLOC_CONF" not in gaps("gpu-cache", own)


@pytest.mark.parametrize("preset", PRESETS)
def test_no_preset_sets_a_variable_that_the_release_of_torch_deprecates(preset):
    newest = settings.find_preset(preset, (2, 13))
    rows = variable_entries()
    assert [
        name for name in newest if name in rows and rows[name].status is not VariableStatus.ACTIVE
    ] == []
    oldest = settings.find_preset(preset, (2, 8))
    assert [name for name in oldest if name in rows and rows[name].first > (2, 8)] == []


def test_the_preset_check_can_fail():
    assert variable_entries()["PYTORCH_CUDA_ALLOC_CONF"].status is not VariableStatus.ACTIVE
    assert "PYTORCH_CUDA_ALLOC_CONF" in settings.find_preset("gpu-cache", (2, 8))


@pytest.mark.parametrize("name", ["gpu_cache", "gpu-cache", "GPU-Cache"])
def test_both_spellings_of_a_preset(name):
    assert gaps(name) == gaps("gpu-cache")


def test_presets_can_be_combined():
    both = gaps("ethernet,gpu_cache, conservative")
    assert both["HOLDFAST_FIRST_STEP_S"] == "300"
    assert both["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert both["HOLDFAST_LOADER_CACHE"] == "off"  # the last one wins
    with pytest.raises(UnknownName, match="unknown preset 'gpucache'"):
        gaps("basic,gpucache")


def test_preset_readings_have_origins():
    readings = settings.preset_readings(
        "prefetch", workers=2, cores=8, environ={"TORCH_FR_BUFFER_SIZE": "5"}
    )
    found = {
        reading.name: (reading.value, reading.origin, bool(reading.why)) for reading in readings
    }
    assert found["OMP_NUM_THREADS"] == ("2", "preset prefetch", True)
    assert found["TORCH_FR_BUFFER_SIZE"] == ("5", "environment", False)


@pytest.mark.parametrize(
    ("workers", "cores", "threads"), [(4, 2, "1"), (4, 16, "4"), (3, 16, "5"), (0, 8, "8")]
)
def test_threads_share_the_cores(workers, cores, threads):
    assert gaps("basic", workers=workers, cores=cores)["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_value_is_valid_for_its_variable(preset):
    for reading in settings.preset_readings(preset, workers=2, environ={}):
        settings.read_setting(reading.name, flag=reading.value)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_contain_no_costly_workarounds(preset):
    harmful = (
        r"NCCL_P2P|NCCL_SHM|NCCL_ALGO|NCCL_PROTO|NCCL_TIMEOUT|CUDA_LAUNCH_BLOCKING|DESYNC_DEBUG"
    )
    assert [name for name in PRESETS[preset] if re.search(harmful, name)] == []


def test_a_misspelled_preset_gets_a_suggestion():
    with pytest.raises(
        UnknownName, match="unknown preset 'conservativ'; did you mean conservative"
    ):
        settings.preset_readings("conservativ", workers=1)
