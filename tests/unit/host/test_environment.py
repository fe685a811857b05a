"""Which variables are recorded, and which values are redacted."""

import pytest

from holdfast.host.environment import REDACTED, environment_facts, redact_value


def test_relevant_variables_are_kept_in_order():
    environ = {
        "WORLD_SIZE": "4",
        "NCCL_DEBUG": "INFO",
        "HOME": "/root",
        "MY_RANK": "3",
        "RANK": "0",
        "HF_TOKEN": "x",
    }
    facts = environment_facts(environ)
    assert [fact.text for fact in facts] == ["NCCL_DEBUG=INFO", "RANK=0", "WORLD_SIZE=4"]
    assert facts[0].origin == "environment variable NCCL_DEBUG"
    assert facts[0].host


@pytest.mark.parametrize(
    "name",
    [
        "HOLDFAST_TOKEN",
        "SLURM_JWT",
        "NCCL_API_KEY",
        "holdfast_password",
        "UCX_CREDENTIALS",
        "FI_SECRET",
    ],
)
def test_variables_with_secret_names_are_redacted(name):
    assert redact_value(name, "abc") == REDACTED
    assert redact_value(name, "") == ""


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("MASTER_ADDR", "http://me:pass@host:29500/x", f"http://{REDACTED}@host:29500/x"),
        ("TORCH_HOME", "s3://bucket/x", "s3://bucket/x"),
        ("PMIX_AUTH", "mode=munge 0123456789abcdef0123456789abcdef", f"mode=munge {REDACTED}"),
        ("PMIX_AUTH", "munge", "munge"),
        ("HOLDFAST_X", "hf_" + "a" * 20, REDACTED),
        ("HOLDFAST_X", "Bearer " + "a" * 20, REDACTED),
        ("HOLDFAST_X", "a eyJhbGciOiJI.eyJzdWIiOiIx.c2ln b", f"a {REDACTED} b"),
        ("TOKENIZERS_PARALLELISM", "false", "false"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", "2000"),
        (
            "TORCHELASTIC_RUN_ID",
            "0123456789abcdef0123456789abcdef",
            "0123456789abcdef0123456789abcdef",
        ),
        ("PYTHONPATH", "x" * 2001, "x" * 2000 + "… (2001 characters)"),
    ],
)
def test_values(name, value, shown):
    assert redact_value(name, value) == shown
