"""The cores that other processes and the host use, from numbers of /proc/stat."""

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from mxc.runtime import other_load
from mxc.runtime.other_load import OtherLoad, described

#: user nice system idle iowait irq softirq steal guest guest_nice, in hundredths of a second.
BEFORE = "cpu  1000 10 100 9000 50 5 5 200 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
AFTER = "cpu  1300 10 200 9100 99 5 5 500 0 0\n"


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    """The seconds of wall time, of this process, and of its children."""
    now = [10.0, 1.0, 2.0]
    monkeypatch.setattr(other_load, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    monkeypatch.setattr(other_load, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    usage = {resource.RUSAGE_SELF: 1, resource.RUSAGE_CHILDREN: 2}
    monkeypatch.setattr(
        resource, "getrusage", lambda who: SimpleNamespace(ru_utime=now[usage[who]], ru_stime=0.5)
    )
    return now


def test_others_are_all_but_this_process_its_children_and_idle_time(
    seconds: list[float], tmp_path: Path
) -> None:
    (tmp_path / "stat").write_text(BEFORE)
    others = OtherLoad()
    (tmp_path / "stat").write_text(AFTER)
    seconds[:] = [15.0, 2.5, 3.0]
    # 7 s of processors were used, 2.5 of them here.
    assert others.cores() == pytest.approx(4.5 / 5)
    assert others.stolen() == pytest.approx(3 / 5)
    assert str(others) == "0.90 cores, 0.60 of them stolen by the host"


def test_a_system_without_the_file_says_nothing(seconds: list[float]) -> None:
    others = OtherLoad()
    seconds[0] = 12.0
    assert (others.cores(), others.stolen()) == (0.0, 0.0)


def test_a_quiet_machine_is_not_described_further() -> None:
    assert described(0.09, 0.04) == "0.09 cores"


def test_this_machine() -> None:
    others = OtherLoad()
    assert sum(i * i for i in range(200_000))
    assert others.stolen() <= others.cores() + 0.1 <= (os.cpu_count() or 1) + 1
