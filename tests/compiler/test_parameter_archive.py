"""Headers of parameter archives: what is damaged is refused before anything is mapped."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from mxc.artifact.parameter_archive import ALIGNMENT, read_archive
from mxc.compiler.packing.items import PackItem
from mxc.errors import ArtifactError
from tests.packed_file import packed_file


def archive(tmp_path: Path) -> Path:
    packed_file([PackItem(key="a", source=np.arange(9, dtype=np.uint8))], tmp_path / "w.irpa")
    return tmp_path / "w.irpa"


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (0, b"XRPA", "not an IREE parameter archive"),
        (4, b"\1\0", "found version 1"),
        (16, b"\1", "linked to another"),
        (80, (1 << 40).to_bytes(8, "little"), "truncated: wanted"),
        (104, b"\1", "entry a is not embedded data"),
        (96 + 68, b"\xff", "entry a is not embedded data"),
        (32, b"\2", "entry table ends early"),
    ],
)
def test_bad_archives(tmp_path: Path, at: int, value: bytes, why: str) -> None:
    path = archive(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:at] + value + data[at + len(value) :])
    with pytest.raises(ArtifactError, match=rf"w.irpa: .*{why}"):
        read_archive(path)


def test_every_byte_of_a_header_is_checked(tmp_path: Path) -> None:
    """All but names, notes and the last bytes of a size is what mxc would write, or refused."""
    path = tmp_path / "w.irpa"
    sizes = {"a": 9, "bc": 80}
    packed_file(
        [PackItem(key=k, source=np.arange(n, dtype=np.uint8)) for k, n in sizes.items()], path
    )
    whole = read_archive(path, canonical=True)
    data = path.read_bytes()
    kept = 0
    for at in range(min(entry.offset for entry in whole.values())):
        for bits in (1, 0x80, 0xFF):
            path.write_bytes(data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :])
            with suppress(ArtifactError):
                found = read_archive(path, canonical=True)
                kept += 1
                assert [e.offset for e in found.values()] == [e.offset for e in whole.values()]
                changed = [e.bytes - n for e, n in zip(found.values(), sizes.values(), strict=True)]
                assert all(abs(change) < ALIGNMENT for change in changed)
    assert 0 < kept < 300
