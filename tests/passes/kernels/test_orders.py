"""The registers of a block of weights: the kernel language and what emits them agree."""

from dataclasses import replace

import pytest

from mxc.kernels.registers import weights_of
from mxc.passes.kernels.cpu.elements import ELEMENTS

TYPES = dict(ELEMENTS)
TYPES |= {f"{name} by 16": replace(ELEMENTS[name], block=16) for name in ("f4E2M1FN", "bf16")}
TYPES |= {f"{name} in rows": elements.in_rows for name, elements in ELEMENTS.items()}


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("name", TYPES)
def test_the_layout_of_decoded_weights_is_the_order_of_their_steps(name: str, lanes: int) -> None:
    elements = TYPES[name]
    bits = 8 if "in rows" in name and elements.bits == 6 else elements.bits
    for kind in elements.kinds:
        layout = weights_of(bits, kind, lanes, elements.block)
        k = layout.coordinates()["k"]
        assert k.shape[1] == lanes
        assert k[:, 0].tolist() == elements.order(kind), kind
        assert (k == k[:, :1]).all()
