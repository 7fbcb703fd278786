"""What is built of the cases that the tests of a file name, once a file."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import without_tiles
from tests.models.architectures.built import write_oracle
from tests.models.architectures.cases import CASES
from tests.models.architectures.dense_cases import Case
from tests.models.compared import Built, Reference, compile_small


def _compile(folder: Path, case: Case, devices: int) -> Path:
    options: dict[str, Any] = {"devices": devices} | (
        {"quantize_dense": "mxfp8"} if case.dense else {}
    )
    if devices > 1:
        # IREE's profiler, which test_devices.py asks, does not ask for tiles of AMX.
        options["target"] = without_tiles.TARGET
    return compile_small(folder / "checkpoint", folder / "model.mxc", **options).path


@pytest.fixture(scope="module")
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Built]]:
    """The model of a case, by its name, for so many devices. Two are compiled at a time, ahead of
    the tests that ask for them; checkpoints are written before, on one thread: transformers changes
    its classes while it loads a model."""
    pool = ThreadPoolExecutor(max_workers=2)
    made: dict[tuple[str, int], tuple[Future[Path], Reference]] = {}
    found: dict[tuple[str, int], Built] = {}
    for item in request.session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        asked = "name" in parameters and "built" in getattr(item, "fixturenames", ())
        if item.path == request.path and asked:
            key = parameters["name"], parameters.get("devices", 1)
            if key not in made:
                folder, case = tmp_path_factory.mktemp("model"), CASES[key[0]]
                oracle = write_oracle(folder / "checkpoint", case)
                made[key] = pool.submit(_compile, folder, case, key[1]), oracle

    def build(name: str, devices: int = 1) -> Built:
        if (name, devices) not in found:
            artifact, oracle = made[name, devices]
            found[name, devices] = Built(artifact.result(), oracle)
        return found[name, devices]

    yield build
    pool.shutdown(cancel_futures=True)
