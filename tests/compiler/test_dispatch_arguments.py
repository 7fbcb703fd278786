"""Kernels that take as many arguments as IREE's runtime passes, and those that take more."""

from pathlib import Path

import numpy as np
import pytest

import mxc
from mxc.errors import MxcError


def sum_of_slices(count: int) -> str:
    """A program that adds up slices of x [N] of 8 elements, each from an offset of the call: one
    kernel, which takes two constants for each offset and two for N."""
    numbers = range(count)
    offsets = "".join(f", %n{n}: i64" for n in numbers)
    slices = "\n".join(
        f"  %i{n} = arith.index_cast %n{n} : i64 to index\n"
        f"  %s{n} = tensor.extract_slice %x[%i{n}] [8] [1] : tensor<?xf32> to tensor<8xf32>"
        for n in numbers
    )
    sums = "\n".join(f"  %y{n} = arith.addf %y{n - 1}, %s{n} : tensor<8xf32>" for n in numbers[1:])
    return f"""func.func @main(%x: tensor<?xf32>{offsets}) -> tensor<8xf32> {{
{slices}
  %y0 = arith.addf %s0, %s0 : tensor<8xf32>
{sums}
  return %y{count - 1} : tensor<8xf32>
}}"""


def sum_of_tensors(count: int) -> str:
    """A program that adds up tensors of 8 elements: one kernel, with a buffer for each and one for
    the result."""
    numbers = range(count)
    given = ", ".join(f"%x{n}: tensor<8xf32>" for n in numbers)
    sums = "\n".join(f"  %y{n} = arith.addf %y{n - 1}, %x{n} : tensor<8xf32>" for n in numbers[1:])
    return f"""func.func @main({given}) -> tensor<8xf32> {{
  %y0 = arith.addf %x0, %x0 : tensor<8xf32>
{sums}
  return %y{count - 1} : tensor<8xf32>
}}"""


def test_as_many_as_the_runtime_passes(tmp_path: Path) -> None:
    program = tmp_path / "slices.mlir"
    program.write_text(sum_of_slices(31))
    mxc.compile(program, output=tmp_path / "slices.mxc")
    model = mxc.load(tmp_path / "slices.mxc")
    x, offsets = np.arange(50, dtype=np.float32), [(7 * n) % 40 for n in range(31)]
    (found,) = model.call("main", x, *map(np.int64, offsets))
    wanted = sum(x[at : at + 8] for at in [*offsets, offsets[0]])
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("target", ["cpu", "gfx950"])
def test_more_are_refused(target: str, tmp_path: Path) -> None:
    program = tmp_path / "slices.mlir"
    program.write_text(sum_of_slices(32))
    with pytest.raises(MxcError, match=r"takes 66 sizes and offsets of a call, .* passes 64; give"):
        mxc.compile(program, target, output=tmp_path / "slices.mxc")
    assert [each.name for each in tmp_path.iterdir()] == ["slices.mlir"]


def test_as_many_buffers_as_the_runtime_passes(tmp_path: Path) -> None:
    program = tmp_path / "tensors.mlir"
    program.write_text(sum_of_tensors(31))
    mxc.compile(program, output=tmp_path / "tensors.mxc")
    model = mxc.load(tmp_path / "tensors.mxc")
    (found,) = model.call("main", *(np.full(8, n, np.float32) for n in range(31)))
    np.testing.assert_array_equal(found, np.full(8, sum(range(31)), np.float32))


@pytest.mark.parametrize(("target", "count", "most"), [("cpu", 32, 32), ("gfx950", 16, 16)])
def test_more_buffers_are_refused(target: str, count: int, most: int, tmp_path: Path) -> None:
    program = tmp_path / "tensors.mlir"
    program.write_text(sum_of_tensors(count))
    with pytest.raises(MxcError, match=rf"takes {count + 1} buffers of a call, .* passes {most}"):
        mxc.compile(program, target, output=tmp_path / "tensors.mxc")
