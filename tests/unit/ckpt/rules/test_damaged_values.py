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


def test_a_triangular_mask_is_no_lost_page(tmp_path):
    path, _ = verify(tmp_path, mask=torch.ones(2048, 2048).tril())
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size].rstrip()
    header += b" " * (-(8 + len(header)) % 4096)  # its first row begins with a page
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])
    assert verify_checkpoint(path).findings == ()
