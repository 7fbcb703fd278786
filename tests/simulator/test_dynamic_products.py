"""Products of two tensors of a call: matrix instructions, right numbers, whatever comes with it.

Sizes may come with the call, and types may differ. Our kernels compute what is by rows of a sum of
blocks; IREE's code generator the rest, by schedules of mxc-set-product-schedule.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler.report import Report
from mxc.targets.amd import GPUS
from mxc.targets.gpu import Gpu

TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "i8": np.int8}
#: Sizes of a call: none is a multiple of a tile, and there are several tiles along each loop.
#: Only h is a multiple of a block.
SIZES = {"a": 2, "b": 3, "m": 67, "n": 131, "k": 75, "h": 160, "j": 5, "u": 1}


@dataclass(frozen=True)
class Form:
    """Subscripts as numpy's einsum has them; a letter in `dynamic` has no size in the program."""

    lhs: str
    rhs: str
    out: str
    dynamic: str
    types: tuple[str, str] = ("bf16", "bf16")

    @property
    def name(self) -> str:
        return f"{self.lhs}_{self.rhs}_{self.out}_{self.dynamic}_{'_'.join(self.types)}"

    def type(self, subscripts: str, element: str) -> str:
        sizes = "".join(f"{'?' if c in self.dynamic else SIZES[c]}x" for c in subscripts)
        return f"tensor<{sizes}{element}>"

    @property
    def text(self) -> str:
        loops = [*self.out, *sorted((set(self.lhs) | set(self.rhs)) - set(self.out))]
        kinds = ["parallel"] * len(self.out) + ["reduction"] * (len(loops) - len(self.out))
        maps = ", ".join(
            f"affine_map<({', '.join(loops)}) -> ({', '.join(each)})>"
            for each in (self.lhs, self.rhs, self.out)
        )
        total = "i32" if "i8" in self.types else "f32"
        left, right = (
            self.type(each, kind)
            for each, kind in zip((self.lhs, self.rhs), self.types, strict=True)
        )
        result = self.type(self.out, total)
        lines, sizes = [], []
        for letter in self.out:
            if letter not in self.dynamic:
                continue
            side, shape, kind = (
                ("%x", self.lhs, left) if letter in self.lhs else ("%w", self.rhs, right)
            )
            lines.append(f"%c{letter} = arith.constant {shape.index(letter)} : index")
            lines.append(f"%d{letter} = tensor.dim {side}, %c{letter} : {kind}")
            sizes.append(f"%d{letter}")
        extend = "extsi" if total == "i32" else "extf"
        names = []
        body = []
        for value, kind in zip("pq", self.types, strict=True):
            names.append(f"%{value}" if kind == total else f"%{value}e")
            if kind != total:
                body.append(f"%{value}e = arith.{extend} %{value} : {kind} to {total}")
        letter = "i" if total == "i32" else "f"
        zero = "0" if total == "i32" else "0.0"
        return f"""
func.func @{self.name}(%x: {left}, %w: {right}) -> {result} {{
  {"; ".join(lines).replace("; ", chr(10))}
  %z = arith.constant {zero} : {total}
  %e = tensor.empty({", ".join(sizes)}) : {result}
  %f = linalg.fill ins(%z : {total}) outs(%e : {result}) -> {result}
  %y = linalg.generic {{indexing_maps = [{maps}],
      iterator_types = [{", ".join(f'"{kind}"' for kind in kinds)}]}}
      ins(%x, %w : {left}, {right}) outs(%f : {result}) {{
  ^bb0(%p: {self.types[0]}, %q: {self.types[1]}, %o: {total}):
    {chr(10).join(body)}
    %t = arith.mul{letter} {names[0]}, {names[1]} : {total}
    %s = arith.add{letter} %o, %t : {total}
    linalg.yield %s : {total}
  }} -> {result}
  return %y : {result}
}}
"""


#: What our kernels compute.
OURS = [
    *(Form("mh", "nh", "mn", dynamic) for dynamic in ("", "m")),
    *(Form("amh", "anh", "amn", dynamic) for dynamic in ("", "m")),
    Form("amh", "nh", "amn", "a"),
    *(Form("mh", "nh", "mn", "m", ("f16", kind)) for kind in ("f16", "bf16")),
    Form("mh", "nh", "mn", "", ("f32", "bf16")),
]
FORMS = (
    OURS
    + [Form("mk", "nk", "mn", dynamic) for dynamic in ("m", "n", "mn")]
    + [Form("mk", "kn", "mn", dynamic) for dynamic in ("m", "n")]
    + [Form("km", "nk", "mn", "m"), Form("mk", "nk", "nm", "mn"), Form("mjk", "njk", "mn", "m")]
    + [Form("abmk", "nk", "abmn", "m"), Form("abmk", "nk", "abmn", "bm")]
    + [Form("umk", "unk", "umn", "mn"), Form("mk", "ank", "man", "m")]
    + [Form("mk", "nk", "mn", "mn", (kind, kind)) for kind in ("f16", "f32", "i8")]
    + [
        Form("mk", "nk", "mn", dynamic, types)
        for dynamic in ("", "m")
        for types in (("f32", "bf16"), ("bf16", "f32"), ("f16", "bf16"), ("f32", "f16"))
    ]
)


def wanted(form: Form, operands: Sequence[np.ndarray]) -> np.ndarray:
    wide = np.int32 if "i8" in form.types else np.float32
    sides = [each.astype(wide) for each in operands]
    return np.einsum(f"{form.lhs},{form.rhs}->{form.out}", *sides)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("programs") / "products.mlir"
    file.write_text("".join(form.text for form in FORMS))
    return file


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_all_have_a_matrix_instruction(gpu: Gpu, program: Path, tmp_path: Path) -> None:
    made = mxc.compile(program, target=gpu.name, output=tmp_path / "products.mxc")
    report = Report.from_dict(json.loads((made.path / REPORT).read_text()))
    assert len(report.matmuls) == len(FORMS)
    assert sum(kernel.spills for kernel in report.kernels) == 0
    f32 = gpu.matrix.layout("f32") is not None
    for each in report.matmuls:
        wanted = f32 or (each.lhs == each.rhs != "f32")
        ours = any(form.name == each.function for form in OURS)
        assert ours == each.kernel.startswith("mxc_"), each
        assert each.lowering.startswith(("v_mfma", "v_wmma")) == (wanted or ours), each


@pytest.mark.parametrize("target", ["gfx950", "gfx942"])
def test_numbers(target: str, program: Path, tmp_path: Path) -> None:
    mxc.compile(program, target=target, output=tmp_path / "products.mxc", listing=False)
    model = mxc.load(tmp_path / "products.mxc", device="simulator")
    rng = np.random.default_rng(3)
    for form in FORMS:
        operands = [
            # Whole numbers: every sum is exact, in whatever order.
            rng.integers(-8, 9, [SIZES[c] for c in shape]).astype(TYPES[kind])
            for shape, kind in zip((form.lhs, form.rhs), form.types, strict=True)
        ]
        (found,) = model.call(form.name, *operands)
        np.testing.assert_array_equal(found, wanted(form, operands), err_msg=form.name)
