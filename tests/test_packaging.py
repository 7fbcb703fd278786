"""The wheel: built from the tree, installed without it, everything in it and importable."""

import configparser
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "mxc", "artifact", "compiler", "dialects", "formats", "kernels", "passes", "runtime",
    "server", "simulator", "targets",
)  # fmt: skip
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*command: str, cwd: Path, **environment: str) -> str:
    result = subprocess.run(
        command, cwd=cwd, env=environment or None, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def pip(*arguments: str, cwd: Path) -> str:
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("tree") / "source")


def copied(source: Path) -> Path:
    """A copy of the tree: what an earlier build left in the tree must not get into a package."""
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    return source


def built(source: Path, folder: Path) -> Path:
    """The wheel that pip makes of a folder or an archive."""
    build = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", ".", str(source))
    pip(*build, cwd=folder)
    [found] = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the tree."""
    return built(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed wheel and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--target", str(folder), str(wheel), cwd=folder)
    return folder


def away(installed: Path, *words: str) -> str:
    """Run python on the installed wheel, with its dependencies and without the tree.

    With -S no .pth file is read, so the editable install of the tree is out of reach.
    """
    dependencies = str(distribution("numpy").locate_file(""))
    path = f"{installed}:{dependencies}"
    return run(sys.executable, "-S", *words, cwd=installed.parent, PYTHONPATH=path)


def test_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    wanted = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                name = path.relative_to(ROOT).as_posix()
                wanted.add(name if folder == "mxc" else f"mxc/{name}")
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert sorted(wanted - found) == [], "a folder without __init__.py, or data that no rule names"
    assert sorted(found - wanted) == []


def test_wheel_of_the_source_archive_is_the_same(source: Path, wheel: Path, tmp_path: Path) -> None:
    program = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", program, str(tmp_path), cwd=source)
    [archive] = tmp_path.glob("mxc-*.tar.gz")
    assert archive.name == f"mxc-{PROJECT['version']}.tar.gz"
    again = built(archive, tmp_path)
    contents = []
    for each in (wheel, again):
        with zipfile.ZipFile(each) as opened:
            contents.append({name: opened.read(name) for name in opened.namelist()})
    assert contents[0] == contents[1]


def test_the_version_is_said_once() -> None:
    """CITATION.cff and the changelog name the version of pyproject.toml."""
    version = PROJECT["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version} " in (ROOT / "CHANGELOG.md").read_text()


def test_wheel_carries_licence_and_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [licence] = [name for name in names if name.endswith("dist-info/licenses/LICENSE")]
        [metadata] = [name for name in names if name.endswith("dist-info/METADATA")]
        [entries] = [name for name in names if name.endswith("dist-info/entry_points.txt")]
        text = archive.read(licence).decode()
        head = archive.read(metadata).decode().splitlines()
        scripts = configparser.ConfigParser()
        scripts.read_string(archive.read(entries).decode())
    assert "Apache License" in text
    assert "LLVM Exceptions to the Apache 2.0 License" in text
    assert "License-Expression: Apache-2.0 WITH LLVM-exception" in head
    assert {line.removeprefix("Requires-Python: ") for line in head if "-Python:" in line} == {
        "<3.14,>=3.11"
    }
    assert dict(scripts["console_scripts"]) == PROJECT["scripts"]


def test_every_module_is_imported_from_the_wheel(installed: Path) -> None:
    program = (
        "import importlib, pkgutil, mxc\n"
        "names = [m.name for m in pkgutil.walk_packages(mxc.__path__, 'mxc.')]\n"
        "for name in names:\n"
        "    if not name.endswith('__main__'):\n"
        "        print(importlib.import_module(name).__file__)\n"
        "for name in mxc.__all__: getattr(mxc, name)\n"
    )
    files = {Path(line) for line in away(installed, "-c", program).splitlines()}
    tree = {p for folder in FOLDERS[1:] for p in (ROOT / folder).rglob("*.py")}
    assert {p for p in files if not p.is_relative_to(installed)} == set()
    assert {p.relative_to(installed / "mxc") for p in files} == {
        *(Path(p.name) for p in (ROOT / "mxc").glob("[!_]*.py")),
        *(p.relative_to(ROOT) for p in tree),
    }


def test_command_of_the_wheel_runs(installed: Path) -> None:
    assert "compile" in away(installed, "-m", "mxc", "--help")


def test_project_names_the_pythons_that_the_makefile_takes() -> None:
    assert PROJECT["requires-python"] == ">=3.11,<3.14"
    assert "(3, 11) <= sys.version_info[:2] <= (3, 13)" in (ROOT / "Makefile").read_text()
