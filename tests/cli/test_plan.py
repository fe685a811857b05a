"""``holdfast plan`` as its users start it: what it answers, how it ends, and what it says to what cannot be."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import msgspec
import pytest

from holdfast import cli
from holdfast.measured import Measurement
from holdfast.measured.fit import Fit
from holdfast.plan.heterogeneous import read

PLAN_70B = ["plan", "llama3.1-70b", "--on", "8 x 8 H100", "--batch", "128"]


def ended(capsys, *arguments):
    """Exit status, stdout and stderr of one call in this process."""
    with pytest.raises(SystemExit) as end:
        cli.main(["plan", *arguments])
    shown = capsys.readouterr()
    return end.value.code or 0, shown.out, shown.err


def answer(capsys, *arguments):
    """The JSON document, and the status."""
    status, out, _ = ended(capsys, *arguments, "--json")
    return status, json.loads(out)


def test_a_plan_of_70_billion_is_quick_small_and_without_torch():
    program = f"""
import json, resource, sys
from holdfast.cli import main
try:
    main({PLAN_70B!r})
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    heavy = [name for name in ("torch", "numpy", "jinja2") if name in sys.modules]
    status = open("/proc/self/status").read()  # ru_maxrss holds the size of the process that forked this one, too
    peak = int(status.partition("VmHWM:")[2].split()[0])
    print(json.dumps([heavy, used.ru_utime, peak]), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    heavy, seconds, kib = json.loads(done.stderr)
    assert heavy == []
    assert seconds < 1.0  # of the processor: the wall's are others' too
    assert kib < 500 * 1024


def test_that_check_can_fail():
    program = "import numpy, sys; print([name for name in ('torch', 'numpy') if name in sys.modules])"
    assert (
        "['numpy']"
        in subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    )


def test_what_fits_ends_with_0_and_what_does_not_with_1(capsys):
    assert ended(capsys, "llama3.1-8b", "--on", "8 x H100")[0] == 0
    status, out, _ = ended(capsys, "llava-34b", "--on", "8 x A100-40G", "--strategy", "fsdp2")
    assert status == 1
    assert "does not fit" in out.splitlines()[0]
    assert "would fit" in out


def test_the_json_has_the_finding_its_remedies_and_parts_that_sum_up(capsys):
    status, found = answer(capsys, "llava-34b", "--on", "8 x A100-40G", "--strategy", "fsdp2")
    assert (status, found["schema"], found["command"], found["answer"]) == (1, "holdfast/1", "plan", "does not fit")
    (claim,) = found["findings"]
    assert (claim["code"], claim["level"]) == ("MEM001", "error")
    assert claim["remedies"][0]["command"].startswith("holdfast plan llava-34b --on '8 x A100-40G'")
    (run,) = found["runs"]
    assert run["memory"]["margin"] == run["memory"]["of"] - run["memory"]["total"]
    assert run["setup"]["data"] == 8
    assert run["time"]["seconds"] > 0


def test_the_command_of_a_remedy_can_be_given_and_fits(capsys):
    _, found = answer(capsys, "llava-34b", "--on", "8 x A100-40G", "--strategy", "fsdp2")
    for fix in found["fixes"]:
        status, again = answer(capsys, *shlex.split(fix["command"])[2:])
        assert (status, again["runs"][0]["memory"]["total"]) == (0, fix["memory"]["total"])


def test_unequal_gpus_get_exactly_the_batch(capsys):
    status, found = answer(
        capsys, "llama3.2-1b", "--on", "2 A100-80G and 2 V100-32G", "--batch", "64", "--sequence", "2048"
    )
    assert status == 0
    assert sum(sum(share["micro_batches"]) for share in found["allotment"]["shares"]) == 64
    assert found["precision"] == "fp16"  # a V100 has no bf16
    assert found["allotment"]["step_s"] < found["allotment"]["equal_s"]


def test_bf16_where_a_gpu_lacks_it_is_found_and_named(capsys):
    _, found = answer(capsys, "gpt2", "--on", "2 A100 + 2 V100", "--batch", "8", "--precision", "bf16")
    assert [claim["cause"] for claim in found["findings"]] == ["precision-without-hardware"]


def test_tensor_groups_beyond_a_node_are_found(capsys):
    _, found = answer(capsys, "llama3.1-8b", "--on", "4 x 4 A100", "--tensor", "8")
    assert "tensor-parallel-across-nodes" in [claim["cause"] for claim in found["findings"]]


def test_a_curve_has_its_sizes_and_reasons(capsys):
    _, found = answer(capsys, "gpt2-xl", "--on", "32 x 8 A100", "--strategy", "ddp", "--scale", "8..256")
    points = found["curve"]["points"]
    assert [point["gpus"] for point in points] == [8, 16, 32, 64, 128, 256]
    assert points[0]["efficiency"] == 1.0
    assert found["curve"]["remedies"]


def test_two_measured_points_are_explained(capsys):
    status, out, _ = ended(capsys, "llama2-7b", "--on", "4 x 8 A100", "--strategy", "fsdp2", "--micro-batch", "2",
                           "--sequence", "2048", "--measured", "8:90%,32:60%")  # fmt: skip
    assert status == 0
    assert "31% of the network's rate explain it" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["llama3.1-7b", "--on", "8 H100"], "did you mean llama3.1-70b"),
        (["gpt2", "--on", "8 H10"], "there is no GPU 'H10'; did you mean"),
        (["gpt2", "--on", "eight"], "there is no GPU"),
        (["gpt2", "--on", "8 A100", "--batch", "62", "--strategy", "ddp"], "56 or 64 can be met exactly"),
        (["gpt2", "--on", "2 A100 + 2 V100", "--batch", "3"], "4 can be met exactly"),
        (["gpt2", "--on", "2 A100 + 2 V100"], "no --batch"),
        (["gpt2", "--on", "6 A100", "--tensor", "4"], "does not divide"),
        (["gpt2", "--on", "16 A100", "--pipeline", "16"], "gpt2 has 12 layers"),
        (["gpt2", "--on", "8 A100", "--tensor", "8"], "does not divide the 12 heads of gpt2; take 2 or 4"),
        (["gpt2", "--on", "8 A100", "--expert", "2"], "gpt2 has no experts"),
        (["gpt2", "--on", "8 A100", "--chunks", "2"], "there is no pipeline"),
        (["gpt2", "--on", "8 A100", "--scale", "512..8"], "no rising range"),
        (["gpt2", "--on", "8 A100", "--measured", "8:2"], "write 8:0.9,32:0.6"),
        (["gpt2", "--on", "8 A100", "--measured", "8:90,32:60"], "an efficiency of 90"),
        (["--on", "8 A100"], "neither a name nor --layers and --hidden"),
        (["--on", "8 A100", "--layers", "4", "--hidden", "100", "--heads", "7"], "cannot have 7 heads"),
        (["nowhere/config.json", "--on", "8 A100"], "no such file"),
        (["gpt2", "--on", "8 A100", "--lora", "x"], "is no rank"),
        (["train.py", "--on", "8 A100"], "write train.py:FUNCTION"),
        (["gpt2", "--on", "8 A100", "--freeze", "vision"], "no image tower"),
        (["gpt2", "--on", "8 A100", "--html", "nowhere/a.html"], "its folder does not exist"),
    ],
)
def test_what_cannot_be_is_one_sentence(capsys, arguments, said):
    status, out, err = ended(capsys, *arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[1]", b"{}", b'{"model_type": "llama"}', b"[" * 100_000,
                                     b'{"model_type": "llama", "hidden_size": -1}'])  # fmt: skip
def test_a_hostile_configuration_is_one_sentence(capsys, tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    status, out, err = ended(capsys, str(tmp_path), "--on", "8 A100")
    assert (status, out, len(err.splitlines())) == (2, "", 1)


def test_a_configuration_is_the_model_it_describes(capsys, tmp_path):
    config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
              "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    arguments = ["--on", "8 H100", "--strategy", "fsdp2"]
    _, named = answer(capsys, "meta-llama/Llama-3.1-8B-Instruct", *arguments)
    _, read = answer(capsys, str(tmp_path / "config.json"), *arguments)
    assert named["runs"] == read["runs"]
    assert named["model"]["name"] == "llama3.1-8b"


def test_without_degrees_the_best_layouts_are_explained_and_their_commands_agree(capsys):
    status, found = answer(capsys, "llama3.1-70b", "--on", "4 x 8 A100-80G", "--batch", "64")
    assert status == 0
    first, second = found["layouts"]["best"][:2]
    assert first["setup"] == found["runs"][0]["setup"]
    assert first["reasons"]
    assert found["layouts"]["others"]
    _, again = answer(capsys, *shlex.split(second["command"])[2:])
    assert again["runs"][0]["setup"] == second["setup"]
    assert again["runs"][0]["time"]["tokens_per_s"] == pytest.approx(second["tokens_per_s"])


def test_where_nothing_fits_what_would_is_said(capsys):
    status, found = answer(capsys, "llama3.1-405b", "--on", "8 A100-80G")
    assert (status, found["answer"]) == (1, "does not fit")
    assert found["fixes"]


def test_groups_are_printed_and_verified(capsys):
    status, out, _ = ended(capsys, "llama3.1-8b", "--on", "2 x 8 H100", "--tensor", "4", "--pipeline", "2", "--groups")
    assert status == 0
    assert "tp (tensor): 4 groups of 4 ranks within a node, the first is 0-3" in out
    assert "verified: each of 16 ranks" in out
    _, found = answer(capsys, "llama3.1-8b", "--on", "2 x 8 H100", "--tensor", "4", "--pipeline", "2", "--groups")
    assert found["groups"]["kinds"]["tp"] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    for ranks in found["groups"]["kinds"].values():
        assert sorted(rank for group in ranks for rank in group) == list(range(16))


def test_the_page_is_whole_loads_nothing_and_draws_what_the_sheet_says(capsys, tmp_path):
    page = tmp_path / "plan.html"
    arguments = ["--on", "2 x 8 H100", "--tensor", "4", "--pipeline", "2", "--scale", "16..128", "--html", str(page)]
    assert ended(capsys, "llama3.1-8b", *arguments)[0] == 0
    text = page.read_text()
    assert text.endswith("</html>\n")
    assert not re.search(r'(src|href)="(?!data:)|url\(|<script', text)
    for said in ("Memory of a GPU", "stage 0", "Tensor groups", "Pipeline stages", "Scaling", "the GPU&#39;s 79.1"):
        assert said in text or said.replace("&#39;", "'") in text, said


def test_configurations_are_written_once_and_migrate(capsys, tmp_path):
    folder = tmp_path / "made"
    arguments = ["llama3.1-8b", "--on", "8 x A100-80G", "--strategy", "zero3", "--batch", "64", "--write", str(folder)]
    status, found = answer(capsys, *arguments)
    assert status == 0
    names = {path.name for path in folder.iterdir()}
    assert {"deepspeed.json", "fsdp2.json", "accelerate_fsdp2.yaml", "torchtitan.toml", "process_groups.py"} <= names
    assert {kept["path"] for kept in found["written"]["kept"]} == {str(folder / name) for name in names}
    assert json.loads((folder / "deepspeed.json").read_text())["train_batch_size"] == 64
    compile((folder / "process_groups.py").read_text(), "process_groups.py", "exec")
    status, out, err = ended(capsys, *arguments)
    assert (status, out) == (2, "")
    assert "is not replaced" in err
    _, found = answer(capsys, "--migrate", str(folder / "deepspeed.json"), "--to", "fsdp2")
    assert {each["key"] for each in found["migration"]["mapped"]} >= {"zero_optimization.stage", "optimizer.type"}
    status, out, err = ended(capsys, "--migrate", str(folder / "deepspeed.json"), "--to", "fsdp2")
    assert (status, out.startswith("# ---- fsdp2.json")) == (0, True)
    assert "left out" in err
    target = tmp_path / "over"
    status, out, _ = ended(capsys, "--migrate", str(folder / "fsdp2.json"), "--to", "deepspeed", "--write", str(target))
    assert (status, (target / "deepspeed.json").exists()) == (0, True)
    assert str(target / "deepspeed.json") in out


@pytest.mark.parametrize(
    "content",
    [b"", b"[1]", b"{1", b"\xff", b"a: &a [1]\nb: *a\n", b"[" * 100_000, b'{"other": 1}', b"1: 2\n",
     b'{"zero_optimization": {"stage": 9}}'],
)  # fmt: skip
def test_a_hostile_configuration_to_migrate_is_one_sentence(capsys, tmp_path, content):
    (tmp_path / "c").write_bytes(content)
    status, out, err = ended(capsys, "--migrate", str(tmp_path / "c"), "--to", "fsdp2")
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["gpt2"], ["--migrate", "a.json"], ["--to", "fsdp2"]])
def test_what_is_missing_is_said(capsys, arguments):
    status, out, err = ended(capsys, *arguments)
    assert (status, out) == (2, "")
    assert "--on is missing" in err or "belong together" in err


@pytest.mark.slow
def test_a_module_of_ones_own_is_counted_and_run(capsys, tmp_path):
    (tmp_path / "net.py").write_text(
        "def build():\n"
        "    import torch\n"
        "    from torch import nn\n"
        "    def step(module, micro_batch, sequence):\n"
        "        return module(torch.randn(micro_batch, 64)).sum()\n"
        "    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)), step\n"
    )
    status, found = answer(capsys, f"{tmp_path}/net.py:build", "--on", "2 A10", "--strategy", "ddp")
    assert (status, found["model"]["params"]) == (0, 64 * 256 + 256 + 256 + 1)
    assert "fake tensors" in found["simulated"][0]
    assert found["runs"][0]["time"] is None


def test_unequal_gpus_on_which_nothing_fits_end_with_1_and_a_way_out(capsys):
    arguments = ["llama2-13b", "--on", "2 A100-80G + 2 V100-32G", "--batch", "8"]
    status, found = answer(capsys, *arguments)
    assert (status, found["allotment"]) == (1, None)
    assert [run["gpu"] for run in found["runs"]] == ["A100-80G", "V100-32G"]
    (fix,) = found["fixes"]
    status, again = answer(capsys, *shlex.split(fix["command"])[2:])
    assert status == 0
    assert sum(sum(share["micro_batches"]) for share in again["allotment"]["shares"]) == 8


def test_sizes_of_a_curve_that_do_not_fit_are_marked(capsys):
    _, out, _ = ended(capsys, "llama3.1-70b", "--on", "8 x 8 A100-80G", "--strategy", "fsdp2", "--recompute", "full",
                      "--scale", "8..64")  # fmt: skip
    lines = [line for line in out.splitlines() if "tokens/s" in line and "█" in line]
    assert ["does not fit" in line for line in lines] == [True, True, False, False]


def test_links_that_bench_measured_count_more_than_tables(tmp_path, capsys):
    file = tmp_path / "links.json"
    fit = Fit(
        collective="all_gather", way="torch", backend="nccl", dtype="float32", ranks=8, hosts=1, latency_s=1e-4,
        latency_interval_s=(0.0, 1e-3), bandwidth=1e9, bandwidth_interval=(1e8, None), worst_error=0.1,
    )  # fmt: skip
    file.write_bytes(msgspec.json.encode({"measurement": Measurement(ranks=8, fits=(fit,))}))
    asked = ("llama3.2-1b", "--on", "8 A100", "--strategy", "fsdp2", "--micro-batch", "1")
    _, by_table = answer(capsys, *asked)
    status, measured = answer(capsys, *asked, "--links", str(file))
    assert status == 0
    assert measured["runs"][0]["time"]["seconds"] > 5 * by_table["runs"][0]["time"]["seconds"]
    assert measured["links"] == "as holdfast bench measured them over nccl, 8 ranks on 1 host"
    _, out, _ = ended(capsys, *asked, "--links", str(file))
    assert measured["links"] in out


@pytest.mark.parametrize(("content", "said"), [(b"{", "it is no measurement"), (b'{"measurement": {}}', "--min-bytes")])
def test_links_that_are_none_are_refused_in_a_sentence(tmp_path, capsys, content, said):
    file = tmp_path / "links.json"
    file.write_bytes(content)
    status, _, err = ended(capsys, "llama3.2-1b", "--on", "8 A100", "--links", str(file))
    assert (status, err.count("\n")) == (2, 1)
    assert said in err


def test_shares_of_unequal_gpus_are_written_as_the_sampler_reads_them(tmp_path, capsys):
    asked = ("llama3.2-1b", "--on", "2 A100-80G and 2 V100-32G", "--batch", "64", "--write", str(tmp_path / "new"))
    status, found = answer(capsys, *asked)
    assert status == 0
    again = read((tmp_path / "new" / "heterogeneous.yaml").read_text(), "heterogeneous.yaml")
    assert [list(sizes) for sizes in again.shares().sizes] == [
        share["micro_batches"] for share in found["allotment"]["shares"]
    ]
    assert (again.batch, again.precision) == (64, "fp16")
