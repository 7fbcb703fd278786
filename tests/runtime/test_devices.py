"""The devices of an artifact for several: which they are, and the cores of their workers."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mxc.artifact.manifest import Manifest, read_manifest
from mxc.errors import RequestError
from mxc.runtime.device import device_uris
from mxc.runtime.machine import core_cpus


@pytest.fixture
def manifest(memory_artifact: Path) -> Manifest:
    """The manifest of a model for two CPU devices."""
    found = read_manifest(memory_artifact)
    assert found.model is not None
    return replace(found, model=replace(found.model, devices=2))


def on_gpus(manifest: Manifest) -> Manifest:
    return replace(manifest, target=replace(manifest.target, name="gfx950", device="hip"))


def test_devices_are_the_first_ones(manifest: Manifest) -> None:
    assert device_uris(None, manifest, "") == ["local-task"] * 2
    assert device_uris("local-sync", manifest, "") == ["local-sync"] * 2
    assert device_uris(None, on_gpus(manifest), "") == ["hip://0", "hip://1"]
    assert device_uris("hip://3,hip://1", on_gpus(manifest), "") == ["hip://3", "hip://1"]


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("hip://0", "compiled for 2 devices; found 'hip://0', give 2, such as hip://0,hip://1"),
        ("hip://0,hip://0", "compiled for 2 devices; found 'hip://0,hip://0'"),
        ("hip://0,hip://1,hip://2", "compiled for 2 devices"),
        ("hip://0,1", "device '1' cannot run it"),
        ("local-task", "which runs on hip; device 'local-task' cannot run it"),
    ],
)
def test_other_devices_are_refused(manifest: Manifest, device: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as error:
        device_uris(device, on_gpus(manifest), "m.mxc")
    assert "\n" not in str(error.value)


#: Prints the cores of each worker of two devices of as many threads as half of the cores.
_WORKERS = """
import os, time
from pathlib import Path
from mxc.runtime.device import open_devices
from mxc.runtime.machine import core_cpus
before = os.sched_getaffinity(0)
count = max(1, len(core_cpus()) // 2)
open_devices(["local-task"] * 2, count, "")
assert os.sched_getaffinity(0) == before
until, found = time.monotonic() + 60, []
# A worker has its name, and then its cores, a moment after it begins.
settled = lambda: len(found) == 2 * count and (len(before) == 1 or before not in found)
while not settled() and time.monotonic() < until:
    tasks = [task for task in Path("/proc/self/task").iterdir()
             if (task / "comm").read_text().startswith("iree-worker")]
    found = [os.sched_getaffinity(int(task.name)) for task in tasks]
for cores in found:
    print(sorted(cores))
"""


def test_workers_of_two_devices_have_cores_of_their_own() -> None:
    """Both would be on the first cores otherwise, and wait for each other."""
    run = subprocess.run([sys.executable, "-c", _WORKERS], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    rows = [set(map(int, line.strip("[]").split(","))) for line in run.stdout.splitlines()]
    assert len(rows) == 2 * max(1, len(core_cpus()) // 2)
    if len(core_cpus()) % 2 == 0:
        assert sum(len(row) for row in rows) == len(set().union(*rows))
