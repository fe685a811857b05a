"""``--order``: numbered optimizers next to weights in a different order."""

import pytest

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.convert import names
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.pipeline import ConversionRequest, convert_checkpoint
from holdfast.ckpt.formats import registry
from holdfast.core.errors import InvalidValue, MissingFile
from tests.golden.checkpoints import matrix
from tests.golden.checkpoints.making import shared_store
from tests.golden.checkpoints.model import model
from tests.unit.ckpt.formats.truth import truth_of


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("to", [CheckpointFormat.TORCH, CheckpointFormat.ZERO2])
def test_order_maps_the_optimizer_of_safetensors(tmp_path, tmp_path_factory, to):
    folder, checkpoint = matrix.checkpoint_of(shared_store(tmp_path_factory), "Accelerate, DDP")
    assert registry.read_checkpoint(checkpoint).optimizer is None
    order = tmp_path / "order.txt"
    order.write_text("\n".join(name for name, _ in model().named_parameters()))
    request = ConversionRequest(
        source=checkpoint,
        target=tmp_path / "it",
        to=to,
        options=ConvertOptions(ranks=2),
        order=names.read_parameter_order(order),
        frozen=("frozen.*",),
    )
    convert_checkpoint(request)
    truth = truth_of(folder)
    del truth["model"]["head.weight"]  # Accelerate does not store it
    assert matrix.arrived(registry.read_checkpoint(request.target), truth) == "all"


def test_invalid_order_file(tmp_path):
    file = tmp_path / "order.txt"
    with pytest.raises(MissingFile, match="no such file"):
        names.read_parameter_order(file)
    file.write_text("\n \n")
    with pytest.raises(InvalidValue, match="no name"):
        names.read_parameter_order(file)
    file.write_text("a\nb\na\n")
    with pytest.raises(InvalidValue, match="'a' twice"):
        names.read_parameter_order(file)
