"""What is built of the cases that the tests of a file name, once a file."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import mxc

# built.py and the cases are no tests.
sys.path.append(str(Path(__file__).parent))

from built import GENERATED, PROMPT, Built, Oracle, write
from cases import CASES


def _build(folder: Path, name: str, devices: int) -> Built:
    case = CASES[name]
    values = write(folder / "checkpoint", case)
    mxc.compile(
        folder / "checkpoint",
        "cpu",
        folder / "model.mxc",
        activations="f32",
        max_sequence_length=PROMPT + GENERATED,
        devices=devices,
    )
    return Built(folder / "model.mxc", Oracle(folder / "checkpoint", case.config, values))


@pytest.fixture(scope="module")
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Built]]:
    """The model of a case, by its name, for so many devices. Two are compiled at a time, ahead of
    the tests that ask for them."""
    pool = ThreadPoolExecutor(max_workers=2)
    made: dict[tuple[str, int], Future[Built]] = {}
    for item in request.session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if item.path == request.path and "name" in parameters:
            key = parameters["name"], parameters.get("devices", 1)
            if key not in made:
                made[key] = pool.submit(_build, tmp_path_factory.mktemp("model"), *key)
    yield lambda name, devices=1: made[name, devices].result()
    pool.shutdown(cancel_futures=True)
