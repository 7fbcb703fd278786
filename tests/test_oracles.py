"""Recorded vectors of libraries were compared with what their scripts write now."""

from pathlib import Path

import numpy as np
import pytest

from tests import oracles
from tests.oracles import ORACLES, ROOT, digests, same


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.name)
def test_vectors_are_those_of_the_script_and_its_inputs(oracle: oracles.Oracle) -> None:
    assert digests().get(oracle.name) == oracle.digest(), "run `make test-oracles`"
    assert list((ROOT / oracle.folder).glob(oracle.outputs))


def test_every_recorded_vector_has_its_oracle() -> None:
    found = (ROOT / "tests").rglob("*_vectors.py")
    scripts = {path for path in found if not path.name.startswith("test_")}
    scripts |= set((ROOT / oracles.CHECKPOINTS).glob("write_*.py"))
    known = {ROOT / f"{each.module.replace('.', '/')}.py" for each in ORACLES}
    assert scripts - known == {ROOT / "tests/vectors/mx_vectors.py"}  # made anew by each test run


def test_files_are_compared(tmp_path: Path) -> None:
    first, second = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez(first, bits=np.arange(4), floats=np.ones(3))
    np.savez(second, bits=np.arange(4), floats=np.ones(3) + 1e-9)
    assert same(first, second)
    np.savez(second, bits=np.arange(4) + 1, floats=np.ones(3))
    assert not same(first, second)
    np.savez(second, bits=np.arange(4))
    assert not same(first, second)
