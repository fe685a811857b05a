"""``holdfast plan``: results, exit status, and errors for invalid input."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import msgspec
import pytest

from holdfast import cli
from holdfast.core.measurements import Measurement
from holdfast.core.measurements.fit import AlphaBetaFit
from holdfast.training.heterogeneous.config import parse_heterogeneous

PLAN_70B = ["plan", "llama3.1-70b", "--on", "8 x 8 H100", "--batch", "128"]


def run_plan(capsys, *arguments):
    """Return exit status, stdout and stderr of one call in this process."""
    with pytest.raises(SystemExit) as end:
        cli.main(["plan", *arguments])
    shown = capsys.readouterr()
    return end.value.code or 0, shown.out, shown.err


def run_plan_json(capsys, *arguments):
    """Return the exit status and the JSON document."""
    status, out, _ = run_plan(capsys, *arguments, "--json")
    return status, json.loads(out)


def test_plan_imports_no_torch():
    program = f"""
import json, resource, sys
from holdfast.cli import main
try:
    main({PLAN_70B!r})
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    heavy = [name for name in ("torch", "numpy", "jinja2") if name in sys.modules]
    status = open("/proc/self/status").read()  # ru_maxrss includes the forking process
    peak = int(status.partition("VmHWM:")[2].split()[0])
    print(json.dumps([heavy, used.ru_utime, peak]), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    heavy, seconds, kib = json.loads(done.stderr)
    assert heavy == []
    assert seconds < 1.0  # CPU seconds: wall time depends on other processes
    assert kib < 500 * 1024


def test_the_import_check_can_fail():
    program = (
        "import numpy, sys; print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    assert (
        "['numpy']"
        in subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
    )


def test_exit_status_tells_whether_it_fits(capsys):
    assert run_plan(capsys, "llama3.1-8b", "--on", "8 x H100")[0] == 0
    status, out, _ = run_plan(capsys, "llava-34b", "--on", "8 x A100-40G", "--strategy", "fsdp2")
    assert status == 1
    assert "does not fit" in out.splitlines()[0]
    assert "ways to make" in out


def test_json_has_finding_remedies_and_consistent_memory(capsys):
    status, result = run_plan_json(
        capsys, "llava-34b", "--on", "8 x A100-40G", "--strategy", "fsdp2"
    )
    assert (status, result["schema"], result["command"], result["answer"]) == (
        1,
        "holdfast/1",
        "plan",
        "does not fit",
    )
    (claim,) = result["findings"]
    assert (claim["code"], claim["level"]) == ("MEM001", "error")
    assert claim["remedies"][0]["command"].startswith("holdfast plan llava-34b --on '8 x A100-40G'")
    (run,) = result["runs"]
    assert run["memory"]["margin"] == run["memory"]["of"] - run["memory"]["total"]
    assert run["setup"]["data"] == 8
    assert run["time"]["seconds"] > 0


def test_commands_of_fit_options_fit(capsys):
    _, result = run_plan_json(capsys, "llava-34b", "--on", "8 x A100-40G", "--strategy", "fsdp2")
    for fix in result["fixes"]:
        status, again = run_plan_json(capsys, *shlex.split(fix["command"])[2:])
        assert (status, again["runs"][0]["memory"]["total"]) == (0, fix["memory"]["total"])


def test_unequal_gpus_get_exactly_the_batch(capsys):
    status, result = run_plan_json(
        capsys,
        "llama3.2-1b",
        "--on",
        "2 A100-80G and 2 V100-32G",
        "--batch",
        "64",
        "--sequence",
        "2048",
    )
    assert status == 0
    assert sum(sum(share["micro_batches"]) for share in result["allotment"]["shares"]) == 64
    assert result["precision"] == "fp16"  # a V100 has no bf16
    assert result["allotment"]["step_s"] < result["allotment"]["equal_s"]


def test_unsupported_bf16_is_reported(capsys):
    _, result = run_plan_json(
        capsys, "gpt2", "--on", "2 A100 + 2 V100", "--batch", "8", "--precision", "bf16"
    )
    assert [claim["cause"] for claim in result["findings"]] == ["precision-without-hardware"]


def test_tensor_groups_beyond_a_node_are_found(capsys):
    _, result = run_plan_json(capsys, "llama3.1-8b", "--on", "4 x 4 A100", "--tensor", "8")
    assert "tensor-parallel-across-nodes" in [claim["cause"] for claim in result["findings"]]


def test_scaling_json_has_sizes_and_remedies(capsys):
    _, result = run_plan_json(
        capsys, "gpt2-xl", "--on", "32 x 8 A100", "--strategy", "ddp", "--scale", "8..256"
    )
    points = result["curve"]["points"]
    assert [point["gpus"] for point in points] == [8, 16, 32, 64, 128, 256]
    assert points[0]["efficiency"] == 1.0
    assert result["curve"]["remedies"]


def test_two_measured_points_are_explained(capsys):
    status, out, _ = run_plan(
        capsys,
        "llama2-7b",
        "--on",
        "4 x 8 A100",
        "--strategy",
        "fsdp2",
        "--micro-batch",
        "2",
        "--sequence",
        "2048",
        "--measured",
        "8:90%,32:60%",
    )
    assert status == 0
    assert "explained by 31% of the nominal network rate" in out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["llama3.1-7b", "--on", "8 H100"], "did you mean llama3.1-70b"),
        (["gpt2", "--on", "8 H10"], "unknown GPU 'H10'; did you mean"),
        (["gpt2", "--on", "eight"], "unknown GPU"),
        (
            ["gpt2", "--on", "8 A100", "--batch", "62", "--strategy", "ddp"],
            "use 56 or 64; for exactly 62",
        ),
        (["gpt2", "--on", "2 A100 + 2 V100", "--batch", "3"], "use a batch of 4"),
        (["gpt2", "--on", "2 A100 + 2 V100"], "--batch is missing"),
        (["gpt2", "--on", "6 A100", "--tensor", "4"], "does not divide"),
        (["gpt2", "--on", "16 A100", "--pipeline", "16"], "gpt2 has 12 layers"),
        (
            ["gpt2", "--on", "8 A100", "--tensor", "8"],
            "does not divide the 12 heads of gpt2; use 2 or 4",
        ),
        (["gpt2", "--on", "8 A100", "--expert", "2"], "gpt2 has no experts"),
        (["gpt2", "--on", "8 A100", "--chunks", "2"], "chunks need pipeline stages"),
        (["gpt2", "--on", "8 A100", "--scale", "512..8"], "not an increasing range"),
        (["gpt2", "--on", "8 A100", "--measured", "8:2"], "use 8:0.9,32:0.6"),
        (["gpt2", "--on", "8 A100", "--measured", "8:90,32:60"], "an efficiency of 90"),
        (["--on", "8 A100"], "no model name, and --layers and --hidden missing"),
        (
            ["--on", "8 A100", "--layers", "4", "--hidden", "100", "--heads", "7"],
            "7 heads do not divide the hidden size 100",
        ),
        (["nowhere/config.json", "--on", "8 A100"], "no such file"),
        (["gpt2", "--on", "8 A100", "--lora", "x"], "is not a rank"),
        (["train.py", "--on", "8 A100"], "use train.py:FUNCTION"),
        (["gpt2", "--on", "8 A100", "--freeze", "vision"], "no vision tower"),
        (["gpt2", "--on", "8 A100", "--html", "nowhere/a.html"], "its folder does not exist"),
    ],
)
def test_invalid_options_give_one_error_line(capsys, arguments, expected):
    status, out, err = run_plan(capsys, *arguments)
    assert (status, out) == (2, "")
    assert expected in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[1]",
        b"{}",
        b'{"model_type": "llama"}',
        b"[" * 100_000,
        b'{"model_type": "llama", "hidden_size": -1}',
    ],
)
def test_malformed_configuration_gives_one_error_line(capsys, tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    status, out, err = run_plan(capsys, str(tmp_path), "--on", "8 A100")
    assert (status, out, len(err.splitlines())) == (2, "", 1)


def test_config_json_is_planned_like_the_named_model(capsys, tmp_path):
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    arguments = ["--on", "8 H100", "--strategy", "fsdp2"]
    _, named = run_plan_json(capsys, "meta-llama/Llama-3.1-8B-Instruct", *arguments)
    _, read = run_plan_json(capsys, str(tmp_path / "config.json"), *arguments)
    assert named["runs"] == read["runs"]
    assert named["model"]["name"] == "llama3.1-8b"


def test_without_degrees_the_best_layouts_are_explained_and_their_commands_agree(capsys):
    status, result = run_plan_json(
        capsys, "llama3.1-70b", "--on", "4 x 8 A100-80G", "--batch", "64"
    )
    assert status == 0
    first, second = result["layouts"]["best"][:2]
    assert result["layouts"]["simplest"] == result["runs"][0]["setup"]
    chosen, fastest = result["runs"][0]["time"]["tokens_per_s"], first["tokens_per_s"]
    assert 0.98 * fastest <= chosen <= fastest
    assert first["reasons"]
    assert result["layouts"]["others"]
    _, again = run_plan_json(capsys, *shlex.split(second["command"])[2:])
    assert again["runs"][0]["setup"] == second["setup"]
    assert again["runs"][0]["time"]["tokens_per_s"] == pytest.approx(second["tokens_per_s"])


def test_misfit_has_fit_options(capsys):
    status, result = run_plan_json(capsys, "llama3.1-405b", "--on", "8 A100-80G")
    assert (status, result["answer"]) == (1, "does not fit")
    assert result["fixes"]


def test_groups_are_printed_and_verified(capsys):
    status, out, _ = run_plan(
        capsys, "llama3.1-8b", "--on", "2 x 8 H100", "--tensor", "4", "--pipeline", "2", "--groups"
    )
    assert status == 0
    assert "tp (tensor): 4 groups of 4 ranks within a node; first: 0-3" in out
    assert "verified: each of 16 ranks" in out
    _, result = run_plan_json(
        capsys, "llama3.1-8b", "--on", "2 x 8 H100", "--tensor", "4", "--pipeline", "2", "--groups"
    )
    assert result["groups"]["kinds"]["tp"] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [12, 13, 14, 15],
    ]
    for ranks in result["groups"]["kinds"].values():
        assert sorted(rank for group in ranks for rank in group) == list(range(16))


def test_page_is_self_contained_and_complete(capsys, tmp_path):
    page = tmp_path / "plan.html"
    arguments = [
        "--on",
        "2 x 8 H100",
        "--tensor",
        "4",
        "--pipeline",
        "2",
        "--scale",
        "16..128",
        "--html",
        str(page),
    ]
    assert run_plan(capsys, "llama3.1-8b", *arguments)[0] == 0
    text = page.read_text()
    assert text.endswith("</html>\n")
    assert not re.search(r'(src|href)="(?!data:)|url\(|<script', text)
    for expected in (
        "GPU memory",
        "stage 0",
        "Tensor groups",
        "Pipeline stages",
        "Scaling",
        "GPU memory 79.1",
    ):
        assert expected in text or expected.replace("&#39;", "'") in text, expected


def test_configurations_are_written_once_and_migrate(capsys, tmp_path):
    folder = tmp_path / "made"
    arguments = [
        "llama3.1-8b",
        "--on",
        "8 x A100-80G",
        "--strategy",
        "zero3",
        "--batch",
        "64",
        "--write",
        str(folder),
    ]
    status, result = run_plan_json(capsys, *arguments)
    assert status == 0
    names = {path.name for path in folder.iterdir()}
    assert {
        "deepspeed.json",
        "fsdp2.json",
        "accelerate_fsdp2.yaml",
        "torchtitan.toml",
        "process_groups.py",
    } <= names
    assert {kept["path"] for kept in result["written"]["kept"]} == {
        str(folder / name) for name in names
    }
    assert json.loads((folder / "deepspeed.json").read_text())["train_batch_size"] == 64
    compile((folder / "process_groups.py").read_text(), "process_groups.py", "exec")
    status, out, err = run_plan(capsys, *arguments)
    assert (status, out) == (2, "")
    assert "is not overwritten" in err
    _, result = run_plan_json(capsys, "--migrate", str(folder / "deepspeed.json"), "--to", "fsdp2")
    assert {each["key"] for each in result["migration"]["mapped"]} >= {
        "zero_optimization.stage",
        "optimizer.type",
    }
    status, out, err = run_plan(
        capsys, "--migrate", str(folder / "deepspeed.json"), "--to", "fsdp2"
    )
    assert (status, out.startswith("# ---- fsdp2.json")) == (0, True)
    assert "not converted" in err
    target = tmp_path / "over"
    status, out, _ = run_plan(
        capsys, "--migrate", str(folder / "fsdp2.json"), "--to", "deepspeed", "--write", str(target)
    )
    assert (status, (target / "deepspeed.json").exists()) == (0, True)
    assert str(target / "deepspeed.json") in out


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[1]",
        b"{1",
        b"\xff",
        b"a: &a [1]\nb: *a\n",
        b"[" * 100_000,
        b'{"other": 1}',
        b"1: 2\n",
        b'{"zero_optimization": {"stage": 9}}',
    ],
)
def test_malformed_configuration_to_migrate_gives_one_error_line(capsys, tmp_path, content):
    (tmp_path / "c").write_bytes(content)
    status, out, err = run_plan(capsys, "--migrate", str(tmp_path / "c"), "--to", "fsdp2")
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["gpt2"], ["--migrate", "a.json"], ["--to", "fsdp2"]])
def test_missing_options_are_reported(capsys, arguments):
    status, out, err = run_plan(capsys, *arguments)
    assert (status, out) == (2, "")
    assert "--on is required" in err or "must be used together" in err


@pytest.mark.slow
def test_user_module_is_counted_and_simulated(capsys, tmp_path):
    (tmp_path / "net.py").write_text(
        "def build():\n"
        "    import torch\n"
        "    from torch import nn\n"
        "    def step(module, micro_batch, sequence):\n"
        "        return module(torch.randn(micro_batch, 64)).sum()\n"
        "    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)), step\n"
    )
    status, result = run_plan_json(
        capsys, f"{tmp_path}/net.py:build", "--on", "2 A10", "--strategy", "ddp"
    )
    assert (status, result["model"]["params"]) == (0, 64 * 256 + 256 + 256 + 1)
    assert "fake tensors" in result["simulated"][0]
    assert result["runs"][0]["time"] is None


def test_unequal_gpus_that_do_not_fit_exit_1_with_fit_options(capsys):
    arguments = ["llama2-13b", "--on", "2 A100-80G + 2 V100-32G", "--batch", "8"]
    status, result = run_plan_json(capsys, *arguments)
    assert (status, result["allotment"]) == (1, None)
    assert [run["gpu"] for run in result["runs"]] == ["A100-80G", "V100-32G"]
    (fix,) = result["fixes"]
    status, again = run_plan_json(capsys, *shlex.split(fix["command"])[2:])
    assert status == 0
    assert sum(sum(share["micro_batches"]) for share in again["allotment"]["shares"]) == 8


def test_sizes_of_a_curve_that_do_not_fit_are_marked(capsys):
    _, out, _ = run_plan(
        capsys,
        "llama3.1-70b",
        "--on",
        "8 x 8 A100-80G",
        "--strategy",
        "fsdp2",
        "--recompute",
        "full",
        "--scale",
        "8..64",
    )
    lines = [line for line in out.splitlines() if "tokens/s" in line and "█" in line]
    assert ["does not fit" in line for line in lines] == [True, True, False, False]


def test_measured_links_override_tables(tmp_path, capsys):
    file = tmp_path / "links.json"
    fit = AlphaBetaFit(
        collective="all_gather",
        way="torch",
        backend="nccl",
        dtype="float32",
        ranks=8,
        hosts=1,
        latency_s=1e-4,
        latency_interval_s=(0.0, 1e-3),
        bandwidth=1e9,
        bandwidth_interval=(1e8, None),
        worst_error=0.1,
    )
    file.write_bytes(msgspec.json.encode({"measurement": Measurement(ranks=8, fits=(fit,))}))
    arguments = ("llama3.2-1b", "--on", "8 A100", "--strategy", "fsdp2", "--micro-batch", "1")
    _, by_table = run_plan_json(capsys, *arguments)
    status, measured = run_plan_json(capsys, *arguments, "--links", str(file))
    assert status == 0
    assert measured["runs"][0]["time"]["seconds"] > 5 * by_table["runs"][0]["time"]["seconds"]
    assert measured["links"] == "measured by holdfast bench over nccl, 8 ranks on 1 host"
    _, out, _ = run_plan(capsys, *arguments, "--links", str(file))
    assert measured["links"] in out


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"{", "it is not valid"), (b'{"measurement": {}}', "--min-bytes")],
)
def test_invalid_link_measurements_are_rejected(tmp_path, capsys, content, expected):
    file = tmp_path / "links.json"
    file.write_bytes(content)
    status, _, err = run_plan(capsys, "llama3.2-1b", "--on", "8 A100", "--links", str(file))
    assert (status, err.count("\n")) == (2, 1)
    assert expected in err


def test_heterogeneous_shares_round_trip(tmp_path, capsys):
    arguments = (
        "llama3.2-1b",
        "--on",
        "2 A100-80G and 2 V100-32G",
        "--batch",
        "64",
        "--write",
        str(tmp_path / "new"),
    )
    status, result = run_plan_json(capsys, *arguments)
    assert status == 0
    again = parse_heterogeneous(
        (tmp_path / "new" / "heterogeneous.yaml").read_text(), "heterogeneous.yaml"
    )
    assert [list(sizes) for sizes in again.shares().sizes] == [
        share["micro_batches"] for share in result["allotment"]["shares"]
    ]
    assert (again.batch, again.precision) == (64, "fp16")
