"""Logits of checkpoints as they are published, against transformers with the same numbers.

What a weight's bytes mean is written out in stored_weights.py; transformers runs the model on these
numbers. test_published_further.py has further architectures.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler.models.model import open_model
from mxc.targets.amd import GFX1201
from tests.models.compared import TOLERANCE
from tests.models.published_checkpoints import PUBLISHED, Published
from tests.models.published_checks import (
    COMPUTED,
    EVERY,
    SAME_CONFIG,
    assert_packed,
    check_packed,
    check_published,
)
from tests.models.published_files import Numbers, write_published
from tests.models.published_forms import one_form_a_projection
from tests.models.published_fused import FUSED
from tests.models.stored_weights import Store


def test_the_documentation_lists_them() -> None:
    text = (Path(__file__).parents[2] / "docs/models.md").read_text()
    listed = re.findall(r"^\|[^|]*\| ([\w.-]+/[\w.-]+) \|", text, re.MULTILINE)
    named = {each.model.partition(",")[0] for each in EVERY.values()}
    # tests/models/architectures/kimi_k3.py
    assert sorted(listed) == sorted(named | {"moonshotai/Kimi-K3"})


def _form(store: Store) -> str:
    """The format of weights, whatever the library that stores them."""
    ends = r"^(quark|compressed|modelopt|mistral)_|_of_tensor$|_of_rows$"
    return re.sub(ends, "", store.__name__)


def _forms(published: Published) -> set[tuple[str, bool]]:
    """The forms of weights, each with whether the model has experts."""
    experts = "experts" in str(published.config)
    return {(_form(store), experts) for store in published.stores.values()}


def test_each_form_is_computed() -> None:
    computed = [_ONE_FORM_EACH, *(EVERY[name] for name in COMPUTED)]
    forms = set.union(*(_forms(each) for each in computed))
    assert all(_forms(EVERY[name]) <= forms for name in SAME_CONFIG)


@pytest.mark.parametrize(("name", "computed"), SAME_CONFIG.items())
def test_numbers(name: str, computed: str, tmp_path: Path) -> None:
    """Those of the weights are packed; the config is that of a checkpoint that is computed."""
    configs = [EVERY[each].config for each in (name, computed)]
    keys = configs[0].keys() | configs[1].keys()
    differ = {key for key in keys if configs[0].get(key) != configs[1].get(key)}
    assert differ <= {"hidden_size", "intermediate_size", "moe_intermediate_size"}
    check_packed(tmp_path, EVERY[name])


_ONE_FORM_EACH = one_form_a_projection(128)


@pytest.mark.parametrize("name", [name for name in COMPUTED if name in PUBLISHED | FUSED])
def test_logits(name: str, tmp_path: Path) -> None:
    check_published(tmp_path, EVERY[name])


def test_logits_of_one_form_a_projection(tmp_path: Path) -> None:
    check_published(tmp_path, _ONE_FORM_EACH)


#: Whole squares of 128 x 128, of experts too: of which there are several along both dimensions.
_SQUARES = replace(
    PUBLISHED["qwen3-moe-fp8"],
    config={
        **PUBLISHED["qwen3-moe-fp8"].config,
        "hidden_size": 256,
        "moe_intermediate_size": 384,
    },
    packed={
        "self_attn.q_proj|mlp.experts": ("f8E4M3FN with f32 per 128", lambda k: k + k / 128 * 4)
    },
)
#: GPUs read scales of squares as they are, where all parts of a weight begin with a square.
_FP8 = PUBLISHED["qwen3-fp8"]
#: At least 160 rows, which may end within a square.
_OF_SQUARES = ("f8E4M3FN with f32 per 128 x 64", lambda k: k + 2 * k / 64 * 4 / 160)
ON_GPUS = {
    "qwen3-fp8": replace(
        _FP8,
        packed={
            "self_attn.o_proj": _FP8.packed["self_attn.o_proj"],
            "self_attn.q_proj|mlp.down_proj": _OF_SQUARES,
            "mlp.gate_up_proj": _FP8.packed["self_attn.q_proj|mlp"],
        },
    ),
    "kimi-int4": PUBLISHED["kimi-int4"],
    "one form a projection": _ONE_FORM_EACH,
    "squares of experts": replace(
        _SQUARES,
        packed={"mlp.experts": ("f8E4M3FN with f32 per 128 x 128", lambda k: k + k / 128 / 32)},
    ),
}


@pytest.mark.parametrize("name", ON_GPUS)
def test_float_scales_on_gfx950(name: str, tmp_path: Path) -> None:
    """Scales of rows, of squares and of groups: weights stay as they are, those of experts too."""
    published, tokens = ON_GPUS[name], [5, 77, 31]
    write_published(tmp_path, published)
    place = tmp_path / "model.mxc"
    artifact = mxc.compile(
        tmp_path / "checkpoint",
        "gfx950",
        place,
        activations="f32",
        max_sequence_length=4,
        listing=False,
    )
    # Blocks of which all have the scale one are those of an MX format to a kernel.
    assert_packed(artifact, published, {"i8": "mxint8", "f8E4M3FN": "mxfp8e4m3"})
    wanted = Numbers(tmp_path).logits(tokens, torch.float64)
    found = mxc.load(place, device="simulator").sequence().feed(tokens)
    assert np.abs(found - wanted).max() / np.sqrt(np.mean(wanted**2)) <= TOLERANCE


def test_activations_in_mxfp8_beside_squares(tmp_path: Path) -> None:
    """CPUs and GPUs quantize them alike. Without them a note says that they may be."""
    write_published(tmp_path, _SQUARES)
    (note,) = (n for n in open_model(tmp_path / "checkpoint").notes if "do not meet" in n)
    assert note.endswith("; --activations mxfp8 is near it")
    tokens, found = [5, 77, 31], {}
    for target in ("cpu", "gfx950"):
        place = tmp_path / f"{target}.mxc"
        artifact = mxc.compile(
            tmp_path / "checkpoint",
            target,
            place,
            activations="mxfp8",
            max_sequence_length=4,
            listing=False,
        )
        products = json.loads((artifact.path / REPORT).read_text())["matmuls"]
        assert {each["lhs"] for each in products if "f32 per" in each["rhs"]} == {"mxfp8e4m3"}
        assert all(each["reason"] is None for each in products)
        device = None if target == "cpu" else "simulator"
        found[target] = mxc.load(place, device=device).sequence().feed(tokens)
    size = np.sqrt(np.mean(found["cpu"] ** 2))
    assert np.abs(found["gfx950"] - found["cpu"]).max() / size <= 0.02
    exact = Numbers(tmp_path).logits(tokens, torch.float64)
    # They are rounded, and no more than e4m3 does.
    assert 1e-3 < np.abs(found["cpu"] - exact).max() / size < 0.3


def test_what_no_kernel_of_gpus_reads_is_said(tmp_path: Path) -> None:
    write_published(tmp_path, PUBLISHED["qwen3-fp8"])
    model = open_model(tmp_path / "checkpoint", unit=GFX1201.matrix)
    why = "kernels for wmma take no f32 scales that differ along a row"
    assert any(f"{why}, so that their numbers are packed as f32" in note for note in model.notes)
