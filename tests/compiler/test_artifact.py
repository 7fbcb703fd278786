"""An artifact is there whole or not at all."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mxc.artifact.manifest import MANIFEST
from mxc.compiler.artifact import record, writing
from mxc.errors import ArtifactError


def fill(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)


def fill_full_disk(folder: Path) -> None:
    (folder / MANIFEST).symlink_to("/dev/full")
    fill(folder, "x")


def write(output: Path, text: str, error: type[BaseException] | None = None) -> None:
    """Replace an artifact, and stop in the middle with `error`."""
    with writing(output, force=True) as folder:
        fill(folder, text)
        if error is not None:
            raise error


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_appears_when_it_is_whole(tmp_path: Path) -> None:
    output = tmp_path / "a.mxc"
    with writing(output, force=False) as folder:
        fill(folder, "new")
        assert not output.exists()
        assert folder.parent == tmp_path, "renaming is atomic only within one file system"
    assert (output / MANIFEST).read_text() == "new"
    assert names(tmp_path) == ["a.mxc"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_whatever_stops_it_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        write(tmp_path / "a.mxc", "half", error)
    assert names(tmp_path) == []


def test_an_artifact_is_replaced_only_on_request(tmp_path: Path) -> None:
    output = tmp_path / "a.mxc"
    with writing(output, force=False) as folder:
        fill(folder, "old")
    refused = pytest.raises(ArtifactError, match=r"a\.mxc: exists; give --force to replace it")
    with refused, writing(output, force=False):
        pass
    with writing(output, force=True) as folder:
        fill(folder, "new")
        (folder / "more").touch()
    assert (output / MANIFEST).read_text() == "new"
    assert names(tmp_path) == ["a.mxc"]


def test_a_failure_keeps_the_artifact_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "a.mxc"
    with writing(output, force=False) as folder:
        fill(folder, "old")
    with pytest.raises(KeyError):
        write(output, "new", KeyError)
    assert (output / MANIFEST).read_text() == "old"
    # Between the two renames, too.
    rename = Path.rename
    renamed: list[Path] = []

    def once(path: Path, to: Path) -> Path:
        if to == output and not renamed:
            renamed.append(path)
            raise KeyboardInterrupt
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", once)
    with pytest.raises(KeyboardInterrupt):
        write(output, "new")
    assert renamed
    assert (output / MANIFEST).read_text() == "old"
    assert names(tmp_path) == ["a.mxc"]


def test_one_that_came_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    output = tmp_path / "a.mxc"
    refused = pytest.raises(ArtifactError, match="exists; give --force")
    with refused, writing(output, force=False), writing(output, force=False) as folder:
        fill(folder, "first")
    assert (output / MANIFEST).read_text() == "first"
    assert names(tmp_path) == ["a.mxc"]


@pytest.mark.parametrize("kind", ["file", "folder", "link", "broken link"])
def test_what_is_no_artifact_is_never_replaced(tmp_path: Path, kind: str) -> None:
    output = tmp_path / "precious"
    if kind == "file":
        output.write_text("precious")
    elif kind == "folder":
        output.mkdir()
    elif kind == "link":
        (tmp_path / "real").mkdir()
        fill(tmp_path / "real", "old")
        output.symlink_to(tmp_path / "real")
    else:
        output.symlink_to(tmp_path / "gone")
    before = names(tmp_path)
    refused = pytest.raises(ArtifactError, match="precious: exists and is no artifact of mxc")
    with refused, writing(output, force=True):
        pass
    assert names(tmp_path) == before


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, said in (
        (tmp_path / "file" / "a.mxc", r"cannot be written \(File exists\); choose another"),
        (Path("/proc/a.mxc"), r"/proc/a.mxc: cannot be written \(.*\); choose another --output"),
        (Path("/"), "/: exists and is no artifact"),
    ):
        with pytest.raises(ArtifactError, match=said), writing(place, force=False):
            pass


def test_the_folder_of_the_output_is_made(tmp_path: Path) -> None:
    with writing(tmp_path / "new" / "one" / "a.mxc", force=False) as folder:
        fill(folder, "new")
    assert names(tmp_path / "new" / "one") == ["a.mxc"]


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    output = tmp_path / "a[1].mxc"
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom mxc.compiler.artifact import writing\n"
        "with writing(Path(sys.argv[1]), force=False) as folder:\n"
        "    (folder / 'half').touch()\n    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(output)]).returncode == -9
    (dead,) = names(tmp_path)
    live = tmp_path / f".{output.name}.mxc-partial-0123abcd"
    live.mkdir()
    (tmp_path / ".b.mxc.mxc-partial-01234567-old").mkdir()  # of another output
    other = tmp_path / ".b.mxc.partial-01234567"  # not ours
    other.mkdir()
    handle = os.open(live, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with writing(output, force=False) as folder:
        assert names(tmp_path) == sorted([live.name, other.name, folder.name])
        with writing(tmp_path / "c.mxc", force=False) as second:
            fill(second, "c")
        fill(folder, "a")
    os.close(handle)
    assert dead.startswith(".a[1].mxc.mxc-partial-")
    assert names(tmp_path) == sorted([live.name, other.name, "a[1].mxc", "c.mxc"])


def test_a_full_disk_is_a_refusal(tmp_path: Path) -> None:
    refused = pytest.raises(ArtifactError, match="no space left on the device; free some or")
    with refused, writing(tmp_path / "a.mxc", force=False) as folder:
        fill_full_disk(folder)
    assert names(tmp_path) == []


def test_record(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"abc")
    # FIPS 180-2, appendix B.1.
    wanted = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert (record(file).bytes, record(file).sha256) == (3, wanted)
