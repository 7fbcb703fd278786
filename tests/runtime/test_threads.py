"""Workers: how many, on which cores, and that they change no result."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mxc.errors import RequestError
from mxc.runtime import load, machine
from mxc.runtime.device import without_preempting


def test_threads_change_nothing_but_threads(plain_artifact: Path) -> None:
    values = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    one, three, default = (load(plain_artifact, threads=n) for n in (1, 3, None))
    assert (one.threads, three.threads) == (1, 3)
    assert default.threads == machine.physical_cores()
    assert load(plain_artifact, device="local-sync", threads=3).threads == 1
    results = [m.call("mixed", values)[0] for m in (one, three, default)]
    assert results[0] == results[1] == results[2]
    np.testing.assert_allclose(results[0], values.sum(dtype=np.float64), rtol=0, atol=1e-2)


def test_each_number_of_threads_has_its_own_workers(plain_artifact: Path) -> None:
    if sys.platform != "linux":
        pytest.fail("counts threads in /proc: written for Linux")
    code = (
        "import sys; from mxc.runtime import load\n"
        "import time; from pathlib import Path\n"
        "names = lambda: [t.read_text() for t in Path('/proc/self/task').glob('*/comm')]\n"
        "workers = lambda: sum(n.startswith('iree-worker') for n in names())\n"
        "def settled(n):\n"
        "    end = time.monotonic() + 60\n"
        "    while workers() != n and time.monotonic() < end: time.sleep(0.01)\n"
        "    return workers()\n"
        "keep = [load(sys.argv[1], threads=2)]; print(settled(2))\n"
        "keep += [load(sys.argv[1], threads=2)]; print(settled(2))\n"
        "keep += [load(sys.argv[1], threads=3)]; print(settled(5))\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(plain_artifact)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.split() == ["2", "2", "5"]


WHERE = """
import os, sys, time
from pathlib import Path
from mxc.runtime import load
for cpus, threads in eval(sys.argv[2]):
    if os.fork() == 0:
        os.sched_setaffinity(0, cpus)
        model = load(sys.argv[1], threads=threads)
        end, found = time.monotonic() + 60, []
        while len(found) != model.threads and time.monotonic() < end:
            status = [task.read_text() for task in Path("/proc/self/task").glob("*/status")]
            found = [text.split("Cpus_allowed_list:")[1].split()[0]
                     for text in status if text.split()[1].startswith("iree-worker")]
        print(model.threads, *sorted(found), flush=True)
        os._exit(0)
    os.wait()
"""


def test_workers_stay_on_their_cores(plain_artifact: Path) -> None:
    """One to a core where all are used; inside of what the process was given in any case."""
    cpus = sorted(os.sched_getaffinity(0))
    if sys.platform != "linux" or len(cpus) < 2:
        pytest.fail("wants Linux and two CPUs")
    first, second = cpus[:2]
    cases = [({first}, None), ({second}, 1), ({first, second}, None)]
    out = subprocess.run(
        [sys.executable, "-c", WHERE, str(plain_artifact), repr(cases)],
        capture_output=True,
        text=True,
        check=True,
    )
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    one_core = len({Path(siblings.format(cpu)).read_text() for cpu in (first, second)}) == 1
    assert out.stdout.splitlines() == [
        f"1 {first}",
        f"1 {second}",
        f"1 {first}" if one_core else f"2 {first} {second}",
    ]


@pytest.mark.parametrize("threads", [0, -1])
def test_threads_below_one(plain_artifact: Path, threads: int) -> None:
    with pytest.raises(RequestError, match="threads must be at least 1"):
        load(plain_artifact, threads=threads)


def test_a_call_does_not_displace_the_workers_that_end_it(
    plain_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = load(plain_artifact, threads=2), []

    class Context:
        def invoke(self, *_: object) -> None:
            seen.append(os.sched_getscheduler(0))
            raise RuntimeError("the call fails")

    monkeypatch.setattr(model, "_context", Context())
    before = os.sched_getscheduler(0)
    with pytest.raises(RuntimeError, match="the call fails"):
        model.call("mixed", np.zeros(4096, np.float32))
    assert seen == [os.SCHED_BATCH]
    assert os.sched_getscheduler(0) == before == os.SCHED_OTHER


def test_threads_keep_a_policy_that_cannot_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    with without_preempting():
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
