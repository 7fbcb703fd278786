"""Programs from torch: the numbers are those of torch, and weights keep their names."""

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler.artifact import Artifact
from mxc.compiler.report import Report
from mxc.errors import CompileError, MxcError, RequestError
from mxc.formats.formats import FORMATS
from tests.compiler.programs.torch_modules import MODULES, Attention, exported
from tests.compiler.programs.torch_packed_modules import OWN, K
from tests.compiler.programs.torch_scaled_modules import SCALED


def _name(module: str) -> str:
    return re.sub(r"\W+", "_", module)


@pytest.fixture(scope="module")
def modules() -> dict[str, tuple[torch.export.ExportedProgram, torch.nn.Module, Any]]:
    found = {_name(name): each for name, each in exported().items()}
    x = torch.randn(5, K)
    rows = {"x": {0: torch.export.Dim("rows", min=2)}}
    for name, kind in OWN.items():
        module = kind()
        dynamic = rows if name == "float8" else None
        program = torch.export.export(module, (x,), dynamic_shapes=dynamic)
        found[name] = (program, module, (x,))
    return found


def _array(tensor: torch.Tensor) -> Any:
    """A tensor as callers give it: numpy knows no 8-bit floats of torch."""
    if tensor.element_size() > 1 or tensor.dtype == torch.bool:
        return tensor.numpy()
    kind = {
        torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
        torch.float8_e8m0fnu: ml_dtypes.float8_e8m0fnu,
    }.get(tensor.dtype, np.uint8)
    return tensor.view(torch.uint8).numpy().view(kind)


@pytest.fixture(scope="module")
def compiled(modules: Any, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    programs = {name: program for name, (program, _, _) in modules.items()}
    return mxc.compile(programs, output=tmp_path_factory.mktemp("torch") / "all.mxc")


@pytest.fixture(scope="module")
def model(compiled: Artifact) -> Any:
    return mxc.load(compiled.path, threads=1)


def _report(artifact: Artifact) -> Report:
    return Report.from_dict(json.loads((artifact.path / REPORT).read_text()))


@pytest.mark.parametrize("name", [*map(_name, (*MODULES, *SCALED)), *OWN])
def test_numbers_are_those_of_torch(modules: Any, model: Any, name: str) -> None:
    _, module, values = modules[name]
    (found,) = model.call(name, *map(_array, values))
    wanted = getattr(module, "wanted", module)(*values).detach().numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6 * np.abs(wanted).max())


def test_rows_come_with_the_call(modules: Any, model: Any) -> None:
    x = torch.randn(9, K)
    (found,) = model.call("float8", x.numpy())
    wanted = modules["float8"][1](x).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6 * np.abs(wanted).max())


def test_scaled_products_are_kernels_of_ours(compiled: Artifact) -> None:
    products = [one for one in _report(compiled).matmuls if one.rhs in FORMATS]
    assert len(products) == 15
    assert {one.rhs for one in products} == {"mxfp4", "mxfp8e4m3", "nvfp4"}
    assert not any(one.fallback or one.reason for one in products)


def test_attention_is_a_kernel_of_ours(compiled: Artifact) -> None:
    """In every module, also in one that writes it out; its products are no contractions."""
    report = _report(compiled)
    names = ("attention_causal", "attention_masked", "attention_biased", "transformers_GPT2Model")
    for name in (*names, "transformers_BertLayer", "torch_TransformerEncoderLayer"):
        own = [one for one in report.operations if one.function == name]
        assert any(one.kernel.startswith("mxc_attention") for one in own), name
        reasons = [one.reason or one.fallback for one in report.matmuls if one.function == name]
        assert not any(reasons), name
    kernels = {one.kernel for one in report.operations}
    assert "mxc_attention_1x2x16_f32_dense_causal" in kernels, "two heads share keys"


def test_attention_on_a_gpu(tmp_path: Path) -> None:
    """Queries of 32 positions that two heads share keys for, and 3 that attend to all of 64."""
    heads, three = torch.randn(1, 4, 32, 32), torch.randn(1, 4, 3, 32)
    modules = {
        "causal": (Attention(causal=True), (heads, *torch.randn(2, 1, 2, 32, 32))),
        "whole": (Attention(), (three, *torch.randn(2, 1, 4, 64, 32))),
    }
    programs = {name: torch.export.export(*each) for name, each in modules.items()}
    made = mxc.compile(programs, target="gfx950", output=tmp_path / "x.mxc")
    kernels = {one.kernel for one in _report(made).operations}
    assert {"mxc_attention_1x2x32_f32_dense_causal", "mxc_attention_1x1x32_f32_dense"} <= kernels
    model = mxc.load(made.path, device="simulator")
    for name, (module, values) in modules.items():
        (found,) = model.call(name, *map(_array, values))
        np.testing.assert_allclose(found, module(*values), rtol=1e-4, atol=1e-5)


def test_attention_without_a_kernel_on_a_gpu_has_the_reason(tmp_path: Path) -> None:
    """At both of its products: the condition that it fails."""
    x = torch.randn(1, 4, 32, 140)
    program = torch.export.export(Attention(), (x, x, x))
    made = mxc.compile(program, target="gfx950", output=tmp_path / "x.mxc", listing=False)
    assert [one.reason for one in _report(made).matmuls] == [
        "keys have 144 elements of f32, values 144; kernels take multiples of 16 up to 128"
    ] * 2


class WrittenOut(torch.nn.Module):
    """Attention without torch's function; a query whose keys are all masked gives NaN."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) * 0.25 + mask, -1) @ v


ROUNDED = "attention: scores and weights stay f32 where the program rounds them to bf16"
EMPTY = (
    "attention: a query whose keys are all masked by -inf gives zeros where the program gives NaN"
)


@pytest.mark.parametrize(
    ("module", "kind", "said"),
    [
        (Attention(), torch.float32, []),
        (Attention(), torch.bfloat16, [ROUNDED]),
        (WrittenOut(), torch.float32, [EMPTY]),
        (WrittenOut(), torch.bfloat16, [ROUNDED, EMPTY]),
    ],
)
def test_attention_of_other_numbers_is_a_note(
    tmp_path: Path, module: torch.nn.Module, kind: torch.dtype, said: list[str]
) -> None:
    """In the manifest and in the report; query 1 has no key."""
    mask = torch.zeros(5, 5)
    mask[1] = -torch.inf
    values = [each.to(kind) for each in (*torch.randn(3, 1, 2, 5, 16), mask)]
    program = torch.export.export(module, tuple(values))
    made = mxc.compile(program, output=tmp_path / "x.mxc", listing=False)
    raw = json.loads((made.path / REPORT).read_text())
    assert any(one.kernel.startswith("mxc_attention") for one in Report.from_dict(raw).operations)
    assert raw["notes"] == list(made.manifest.notes)
    assert [note for note in raw["notes"] if note.startswith("attention")] == said
    wanted = module(*values).float().numpy()
    arrays = [each.float().numpy() for each in values]
    if kind == torch.bfloat16:
        arrays = [each.astype(ml_dtypes.bfloat16) for each in arrays]
    (found,) = mxc.load(made.path, threads=1).call("main", *arrays)
    assert np.isnan(wanted[:, :, 1]).all() == (EMPTY in said)
    assert not found[:, :, 1].any()
    bound = 1e-5 if kind == torch.float32 else 3e-2
    others = [0, 2, 3, 4]
    np.testing.assert_allclose(
        found[:, :, others].astype(np.float32), wanted[:, :, others], rtol=bound, atol=bound
    )


def test_scales_in_the_order_of_cublas_are_packed(compiled: Artifact) -> None:
    scales = compiled.manifest.weights["scales"]
    assert (scales.shape, scales.layout) == ((128, 8), "panel16x1")


def test_weights_and_contractions_have_the_names_of_the_state_dict(compiled: Artifact) -> None:
    weights = compiled.manifest.weights
    assert {"gate_proj.weight", "c_fc.weight", "layer.output.dense.weight"} <= set(weights)
    assert {"lin.weight.qdata", "lin.weight.scale", "0.weight.scale"} <= set(weights)
    assert {"gate_proj", "down_proj", "c_fc", "lin"} <= {
        one.name for one in _report(compiled).matmuls
    }
    assert compiled.manifest.functions["lookup"].input_names == ("x",)


def test_an_argument_that_does_not_fit_is_named(model: Any) -> None:
    with pytest.raises(RequestError, match=r"lookup, argument 0 \(x\): wants f32 \[5, 128\]"):
        model.call("lookup", np.zeros((5, K), np.float64))


@torch.library.custom_op("own::twist", mutates_args=())
def twist(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@twist.register_fake
def _twisted(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def branch(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


@pytest.mark.parametrize(
    ("function", "x", "said"),
    [
        (twist, torch.zeros(4), r"test_torch\.py.*own\.twist\.default has no lowering"),
        (branch, torch.zeros(4), "torch.cond has no lowering"),
        (torch.add, torch.zeros(4, dtype=torch.complex64), "argument x is torch.complex64"),
        (torch.add, torch.zeros(4, dtype=torch.uint16), "argument x is torch.uint16"),
    ],
)
def test_what_the_importer_does_not_know_is_refused(
    tmp_path: Path, function: Any, x: torch.Tensor, said: str
) -> None:
    class Unknown(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = function(x, x) if function is torch.add else function(x)
            return found

    program = torch.export.export(Unknown(), (x,))
    with pytest.raises(CompileError, match=said) as caught:
        mxc.compile(program, output=tmp_path / "x.mxc")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "x", "said"),
    [
        # The pass of the importer complains about a constant whose place is unknown.
        (
            lambda x: x.cummax(0)[0],
            torch.zeros(4),
            r"aten\.cummax\S* has no lowering",
        ),
        (torch.linalg.inv, torch.eye(4), r"aten\._linalg_check_errors\.default has no lowering"),
        (
            lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(),
            torch.zeros(4),
            r"aten\.quantize_per_tensor\.default cannot be imported",
        ),
        # The importer ends its process.
        (
            lambda x: torch.nonzero(x),
            torch.zeros(()),
            r"aten\.nonzero\S* ends the importer \(killed by",
        ),
    ],
)
def test_the_operation_that_fails_is_named(
    tmp_path: Path, function: Any, x: torch.Tensor, said: str
) -> None:
    """With its place in the source; where torch has kept none, it says so."""

    class Failing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = torch.nn.Linear(32, 32)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.lin(y), function(x)

    program = torch.export.export(Failing(), (x, torch.zeros(2, 32)))
    for match in (rf"test_torch\.py\W.*: {said}", r"^aten\S* \(its place is not known\) "):
        with pytest.raises(MxcError, match=match) as caught:
            mxc.compile(program, output=tmp_path / "x.mxc")
        assert "\n" not in str(caught.value)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_file_that_is_no_program_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.pt2").write_bytes(content)
    with pytest.raises(CompileError, match="cannot be imported") as caught:
        mxc.compile(tmp_path / "x.pt2", output=tmp_path / "x.mxc")
    assert "\n" not in str(caught.value)


def test_an_operation_without_lowering_is_refused_with_its_place(tmp_path: Path) -> None:
    class Unknown(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvals(x).real

    program = torch.export.export(Unknown(), (torch.randn(4, 4),))
    file = tmp_path / "unknown.pt2"
    torch.export.save(program, file)
    with pytest.raises(
        CompileError, match=r"test_torch\.py.*aten\.\w*eig has no lowering"
    ) as caught:
        mxc.compile(file, output=tmp_path / "x.mxc")
    assert "\n" not in str(caught.value)
