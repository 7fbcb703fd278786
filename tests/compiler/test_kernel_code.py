"""Code of GPU kernels: its text is LLVM's assembly, and equal kernels are generated once."""

import json
import pickle
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

import mxc
from mxc.artifact.code_objects import elf
from mxc.artifact.code_objects.listing import read_listings, without_listing
from mxc.artifact.code_objects.metadata import read_resources, resources
from mxc.artifact.manifest import MODULE
from mxc.compiler.cache import CompileCache, default_folder
from mxc.compiler.emit import emit_assembly
from mxc.compiler.report.assembly import kernels_of, parse
from mxc.errors import CodeObjectError
from mxc.simulator.assembly.metadata import metadata_of
from mxc.simulator.code.code_object import read_kernels
from mxc.targets.amd import GPUS
from tests import kept_code

#: A sum over rows, which is a loop, and another function around it.
PROGRAM = """
func.func @{name}(%x: tensor<4x?xf32>) -> tensor<4xf32> {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4xf32>
  %out = linalg.fill ins(%zero : f32) outs(%empty : tensor<4xf32>) -> tensor<4xf32>
  %y = linalg.generic {{
    indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m)>],
    iterator_types = ["parallel", "reduction"]
  }} ins(%x : tensor<4x?xf32>) outs(%out : tensor<4xf32>) {{
  ^bb0(%a: f32, %b: f32):
    %c = arith.addf %a, %b : f32
    linalg.yield %c : f32
  }} -> tensor<4xf32>
  return %y : tensor<4xf32>
}}
"""
OTHER = """
func.func @more(%x: tensor<8xf32>) -> tensor<8xf32> {
  %y = arith.addf %x, %x : tensor<8xf32>
  return %y : tensor<8xf32>
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with nothing compiled before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(kept_code.FOLDER, raising=False)
    return tmp_path


#: Rows by an index register, whose moves LLVM leaves out of the text.
INDEXED = """
func.func @main(%q: tensor<4x11x16xf32>, %k: tensor<4x16x11xf32>) -> tensor<4x11x11xf32> {
  %z = arith.constant dense<0.0> : tensor<4x11x11xf32>
  %y = linalg.batch_matmul ins(%q, %k : tensor<4x11x16xf32>, tensor<4x16x11xf32>)
      outs(%z : tensor<4x11x11xf32>) -> tensor<4x11x11xf32>
  return %y : tensor<4x11x11xf32>
}
"""


def compiled(folder: Path, text: str, target: str = "gfx950", **options: Any) -> Path:
    (folder / "p.mlir").write_text(text)
    return mxc.compile(
        folder / "p.mlir", target=target, output=folder / "p.mxc", force=True, **options
    ).path


def entries() -> CompileCache:
    place = default_folder()
    assert place is not None
    return CompileCache(place)


def kernels() -> dict[str, tuple[str, bytes]]:
    """The program around each code object in the cache, and it, by the key."""
    found = {}
    for file in entries().entries():
        stored = pickle.loads(file.read_bytes()[32:])
        if isinstance(stored, tuple) and isinstance(stored[0], str):
            found[file.stem] = (stored[0], zlib.decompress(stored[1]))
    return found


def stored() -> dict[str, bytes]:
    """The code objects in the cache, by the name of the first kernel."""
    return {next(iter(read_resources(data))): data for _, data in kernels().values()}


@pytest.mark.parametrize("target", [each.name for each in GPUS])
def test_the_text_is_what_llvm_writes_as_assembly(folder: Path, target: str) -> None:
    report = compiled(folder, PROGRAM.format(name="main"), target) / "report.json"
    (kernel,) = json.loads(report.read_text())["kernels"]
    (listing,) = emit_assembly(folder / "p.mlir", target)
    (wanted,) = parse(listing.text, None, resources(metadata_of(listing.text, "here")))
    assert kernel["name"] == wanted.name
    assert kernel["instructions"] == wanted.instructions
    assert kernel["vgpr"] == wanted.vgpr
    assert kernel["hot_loop"] is None or kernel["hot_loop"]["is_loop"]


@pytest.mark.parametrize(
    "program", [PROGRAM.format(name="main"), INDEXED], ids=["usual", "indexed"]
)
def test_each_instruction_is_where_the_text_says(folder: Path, program: str) -> None:
    compiled(folder, program)
    ((name, data),) = stored().items()
    (text,) = read_listings(data).values()
    kernel = read_kernels(data)[name]
    address = start = kernel.descriptor.entry
    labels: list[str] = []
    for line in text.splitlines():
        if line.startswith(".L"):
            labels.append(line)
            continue
        while not line.startswith("\ts_nop") and kernel.fetch(address).name == "s_nop":
            address += 4  # before the start of a loop
        found = kernel.fetch(address)
        assert re.sub(r"_(e32|e64|dpp|sdwa)$", "", line.split()[0]) == found.name
        if labels and labels[-1].startswith("."):
            assert labels.pop() == f".L{address - start}:"
            labels.append(found.name)
        address += found.size
    assert len(labels) >= 2
    assert ("s_set_gpr_idx_on" in text) == (program == INDEXED)


def test_only_the_text_is_taken_from_a_code_object(folder: Path) -> None:
    path = compiled(folder, PROGRAM.format(name="main"))
    (data,) = stored().values()
    small = without_listing(data)
    assert len(small) < len(data) / 2
    before, after = elf.read_sections(data), elf.read_sections(small)
    assert [each.name for each in before] == [each.name for each in after]
    for each in before:
        wanted = b"" if each.name == ".AMDGPU.disasm" else elf.contents(data, before, each.name)
        assert elf.contents(small, after, each.name) == wanted
    assert read_listings(small) == {}
    assert without_listing(small) == small
    module = (path / MODULE).read_bytes()
    assert module.count(b"\x7fELF") == 1
    assert small in module


def test_a_text_of_other_code_is_refused(folder: Path) -> None:
    compiled(folder, PROGRAM.format(name="main"))
    ((name, data),) = stored().items()
    ((_, address, _),) = elf.functions(data, elf.read_sections(data))
    code = elf.section_of(elf.read_sections(data), address, name)
    at = code.offset + address - code.address
    wrong = data[:at] + struct.pack("<I", 0xBF810000) + data[at + 4 :]
    with pytest.raises(CodeObjectError, match=rf"kernel {name}: .* at byte 0 .* 0xbf810000 there"):
        read_listings(wrong)
    loaded = elf.read_sections(data)
    with pytest.raises(CodeObjectError, match=r"\.text or one that follows it is loaded"):
        elf.emptied(data, loaded, ".text")


def test_a_kernel_of_another_program_is_not_generated_again(folder: Path) -> None:
    compiled(folder, PROGRAM.format(name="main"))
    ((name, data),) = stored().items()
    # What is stored is what is used, here with a mark in a section that is not loaded.
    comment = next(each for each in elf.read_sections(data) if each.name == ".comment")
    marked = bytearray(data)
    marked[comment.offset : comment.offset + comment.size] = b"M" * comment.size
    ((key, (text, found)),) = kernels().items()
    assert found == data
    entries().write({key: pickle.dumps((text, zlib.compress(bytes(marked))))})
    path = compiled(folder, PROGRAM.format(name="main") + OTHER)
    both = stored()
    assert len(both) == 2
    module = (path / MODULE).read_bytes()
    assert all(without_listing(each) in module for each in both.values())
    assert both[name] == bytes(marked)
    report = json.loads((path / "report.json").read_text())
    assert {each["name"] for each in report["kernels"]} == set(both)
    assert all(each["instructions"] for each in report["kernels"])


def test_a_program_of_known_kernels_is_the_same(folder: Path) -> None:
    text = PROGRAM.format(name="main") + OTHER
    fresh = (compiled(folder, text, cache=False) / MODULE).read_bytes()
    compiled(folder, "// other places\n" + text)
    assert len(stored()) == 2
    assert (compiled(folder, text) / MODULE).read_bytes() == fresh


def test_kernels_of_code_objects_without_text_have_no_instructions(folder: Path) -> None:
    compiled(folder, PROGRAM.format(name="main"))
    ((name, data),) = stored().items()
    listed, bare = kernels_of([data])[name], kernels_of([without_listing(data)])[name]
    assert listed.instructions
    assert bare.instructions == {}
    assert listed.vgpr == bare.vgpr
