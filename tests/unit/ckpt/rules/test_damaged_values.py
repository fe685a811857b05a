"""Values that a disk or a flipped bit damaged, in files without checksums; healthy ones do not alarm."""

import pytest
import torch
from safetensors.torch import save_file

from holdfast.ckpt.verification import verify_checkpoint


def verify(folder, **tensors):
    path = folder / "model.safetensors"
    save_file(tensors, path)
    return path, verify_checkpoint(path)


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def zero_page(path, number):
    data = bytearray(path.read_bytes())
    at = len(data) // 2 // 4096 * 4096
    data[at : at + 4096 * number] = bytes(4096 * number)
    path.write_bytes(data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(40, 3000), (120_000,)])
@pytest.mark.parametrize("number", [1, 3])
def test_pages_of_zeros_are_found(tmp_path, dtype, shape, number):
    path, intact = verify(tmp_path, w=normal(*shape, dtype=dtype))
    assert intact.findings == ()
    zero_page(path, number)
    (finding,) = verify_checkpoint(path).findings
    assert (finding.cause, str(finding.level)) == ("checkpoint-weights-all-zero", "error")
    assert "from one page boundary of the file to another" in finding.message


def test_rows_of_zeros_are_a_warning_but_not_in_embeddings(tmp_path):
    rows = normal(40, 3000)
    rows[7:9] = 0
    assert verify(tmp_path, **{"tok_embeddings.weight": rows})[1].findings == ()
    (finding,) = verify(tmp_path, **{"up.weight": rows})[1].findings
    assert (finding.cause, str(finding.level)) == ("checkpoint-weights-all-zero", "warning")


@pytest.mark.parametrize(
    ("dtype", "bit"), [(torch.float32, 30), (torch.bfloat16, 14), (torch.float16, 14)]
)
def test_a_flipped_exponent_is_found(tmp_path, dtype, bit):
    weights = normal(100, 100, dtype=dtype)
    at = int((weights.abs().flatten() - 0.7).abs().argmin())
    weights.view(torch.int32 if dtype.itemsize == 4 else torch.int16).flatten()[at] ^= 1 << bit
    (finding,) = verify(tmp_path, w=weights)[1].findings
    assert finding.cause == "checkpoint-numbers-not-finite"


def test_fresh_models_and_masks_do_not_alarm(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(64, 4, 2048, batch_first=True)
    embedding = torch.nn.Embedding(3000, 64, padding_idx=0)
    parameters = [*model.parameters(), *embedding.parameters()]
    model(embedding(torch.tensor([[1, 2, 3]]))).square().sum().backward()
    states = {  # after one step of Adam: most rows of the embedding have moments of zero
        number: {"step": 1, "exp_avg": 0.1 * each.grad, "exp_avg_sq": 1e-3 * each.grad.square()}
        for number, each in enumerate(parameters)
    }
    groups = [{"lr": 1e-3, "params": list(states)}]
    path = tmp_path / "model.pt"
    mask = torch.full((64, 64), torch.finfo(torch.float32).min).triu(1)
    weights = {**model.state_dict(), "embedding.weight": embedding.weight.detach(), "mask": mask}
    torch.save({"model": weights, "optimizer": {"state": states, "param_groups": groups}}, path)
    report = verify_checkpoint(path)
    assert report.findings == ()
    assert report.survey.contents.optimizer is not None


@pytest.fixture(scope="module")
def on_purpose():
    """Return healthy models with many zeros, by name."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(1024, 320) for _ in range(3)]
    for layer in layers:
        torch.nn.init.zeros_(layer.bias)
    rows, blocks, sparse = ([each.weight.detach().clone() for each in layers] for _ in range(3))
    masked = [each.weight.detach() * (torch.rand(320, 1) > 0.3) for each in layers]  # has -0.0
    for weight in rows:
        weight[torch.randperm(320)[:90]] = 0
    for weight in blocks:
        weight[64:128, 512:] = 0
        weight[:, 256:320] = 0
    for weight in sparse:
        weight[torch.rand(320, 1024) < 0.995] = 0
    head = {"lm.weight": torch.randn(250, 1024)}
    head["lm.weight"][240:] = 0  # padding to a multiple of 50
    lora = {f"l.{n}.lora_A.weight": torch.randn(8, 1024) for n in range(4)}
    lora |= {f"l.{n}.lora_B.weight": torch.zeros(4096, 8) for n in range(4)}
    lora["l.3.lora_B.weight"] = torch.randn(4096, 8)  # the others get no gradients
    biases = torch.randn(3 * 2048)
    biases[2048:4096] = 0  # of the keys
    named = {"rows": rows, "masked": masked, "blocks": blocks, "sparse": sparse}
    return {name: {f"{n}.w": each for n, each in enumerate(w)} for name, w in named.items()} | {
        "fresh": {
            f"{n}.{k}": v for n, each in enumerate(layers) for k, v in each.state_dict().items()
        },
        "padding": head,
        "LoRA": lora,
        "zero head": {"body.weight": rows[0] + 1, "head.weight": torch.zeros(10, 1024)},
        "qkv bias": {"w": rows[0] + 1, "qkv.bias": biases},
        "ReZero": {"0.w": rows[0] + 1, "0.alpha": torch.zeros(()), "1.alpha": torch.zeros(())},
        "small mask": {"w": rows[0] + 1, "mask": torch.full((4, 4), torch.finfo().min).triu(1)},
    }


@pytest.mark.parametrize("shift", [0, 8])
def test_zeros_on_purpose_are_at_most_a_note(tmp_path, on_purpose, shift):
    for name, tensors in on_purpose.items():
        path = tmp_path / f"{name}.safetensors"
        save_file(tensors, path)
        realign(path, shift)
        report = verify_checkpoint(path)
        assert {str(finding.level) for finding in report.findings} <= {"note"}, name
        assert report.verdict.root is None


def realign(path, shift):
    """Make the tensors begin ``shift`` bytes after a page of the file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size].rstrip()
    header += b" " * ((shift - 8 - len(header)) % 4096)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])


def test_a_weight_that_was_trained_or_is_zero_in_one_layer_only(tmp_path):
    weights = {f"{n}.w": normal(8, 8) for n in range(3)} | {"1.w": torch.zeros(8, 8)}
    (finding,) = verify(tmp_path, **weights)[1].findings
    assert (str(finding.level), "1.w" in finding.message) == ("warning", True)
    state = {
        n: {"step": torch.tensor(5.0), "exp_avg": normal(8, 8), "exp_avg_sq": normal(8, 8) ** 2}
        for n in range(2)
    }
    groups = [{"lr": 0.1, "params": [0, 1], "param_names": ["head", "body"]}]
    optimizer = {"state": state, "param_groups": groups}
    model = {"head": torch.zeros(8, 8), "body": normal(8, 8)}
    for expected in (["warning"], ["note"]):
        torch.save({"model": model, "optimizer": optimizer}, tmp_path / "model.pt")
        found = verify_checkpoint(tmp_path / "model.pt").findings
        assert [str(finding.level) for finding in found] == expected
        state[0]["exp_avg_sq"] = torch.zeros(8, 8)


def test_a_triangular_mask_is_no_lost_page(tmp_path):
    path, _ = verify(tmp_path, mask=torch.ones(2048, 2048).tril())
    realign(path, 0)  # its first row begins with a page
    assert verify_checkpoint(path).findings == ()
