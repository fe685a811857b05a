"""An optimizer that counts its parameters, beside weights in another order: the user tells the model's own."""

import pytest

from holdfast.actions.conversion import names
from holdfast.actions.conversion.converting import Wish, convert
from holdfast.actions.conversion.options import Options
from holdfast.errors import BadValue, MissingFile
from holdfast.facts.checkpoints import formats
from holdfast.facts.checkpoints.contents import Format
from tests.facts.checkpoints.truth import truth_of
from tests.saved import matrix
from tests.saved.making import shared_store
from tests.saved.model import model


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("to", [Format.TORCH, Format.ZERO2])
def test_with_the_order_of_parameters_the_optimizer_of_safetensors_arrives(tmp_path, tmp_path_factory, to):
    folder, checkpoint = matrix.checkpoint_of(shared_store(tmp_path_factory), "Accelerate, DDP")
    assert formats.read(checkpoint).optimizer is None
    order = tmp_path / "order.txt"
    order.write_text("\n".join(name for name, _ in model().named_parameters()))
    wish = Wish(
        source=checkpoint, target=tmp_path / "it", to=to, options=Options(ranks=2), order=names.ordered(order),
        frozen=("frozen.*",),
    )  # fmt: skip
    convert(wish)
    truth = truth_of(folder)
    del truth["model"]["head.weight"]  # Accelerate leaves it out
    assert matrix.arrived(formats.read(wish.target), truth) == "all"


def test_a_file_of_names_is_refused_in_a_sentence(tmp_path):
    file = tmp_path / "order.txt"
    with pytest.raises(MissingFile, match="no such file"):
        names.ordered(file)
    file.write_text("\n \n")
    with pytest.raises(BadValue, match="no name"):
        names.ordered(file)
    file.write_text("a\nb\na\n")
    with pytest.raises(BadValue, match="'a' twice"):
        names.ordered(file)
