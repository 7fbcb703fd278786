"""Checkpoints by name, from a hub of our own that answers huggingface_hub from memory."""

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import huggingface_hub.constants
import huggingface_hub.utils
import numpy as np
import pytest
from safetensors.numpy import save

from mxc.compiler.checkpoints.hub import located, origin
from mxc.compiler.inspect.contents import inspect
from mxc.errors import CheckpointError, RequestError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TENSOR = np.arange(64, dtype=np.float32).reshape(2, 32)
CONFIG = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}).encode()
FILES = {
    "config.json": CONFIG,
    "model.safetensors": save({"model.norm.weight": TENSOR}),
    "original/model.safetensors": b"a second copy",
    "consolidated.safetensors": b"another copy",
    "pytorch_model.bin": b"a pickle",
    "small.gguf": b"GGUF",
}
REPOSITORIES = {"someone/some.model-4b": FILES}


class Hub(BaseHTTPRequestHandler):
    """Answers as huggingface.co does; `asked` has the paths, `shown` the tokens that came."""

    asked: list[str]
    shown: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.asked.append(path)
        self.shown.append(self.headers.get("Authorization", ""))
        status, headers, content = answer(path)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)


def answer(path: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and content of a path."""
    for name, files in REPOSITORIES.items():
        if path.startswith(f"/api/models/{name}/tree/{COMMIT}"):
            return 200, {}, json.dumps(listing(files)).encode()
        if path in (f"/api/models/{name}", f"/api/models/{name}/revision/main"):
            siblings = [{"rfilename": file} for file in files]
            return 200, {}, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode()
        if path.startswith(f"/api/models/{name}/revision/"):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        for revision in ("main", COMMIT):
            file = path.removeprefix(f"/{name}/resolve/{revision}/")
            if file in files:
                etag = hashlib.sha1(files[file]).hexdigest()
                return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, files[file]
        if path.startswith(f"/{name}/resolve/"):
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b""
    if "locked" in path:
        return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
    return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"


def listing(files: dict[str, bytes]) -> list[dict[str, Any]]:
    return [
        {
            "type": "file",
            "path": name,
            "size": len(data),
            "oid": hashlib.sha1(data).hexdigest(),
        }
        for name, data in files.items()
    ]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The paths that were asked for. The cache is empty."""
    asked: list[str] = []
    handler = type("Handler", (Hub,), {"asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name, value in {
        "ENDPOINT": address,
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": False,
        "HF_TOKEN_PATH": str(tmp_path / "token"),
        "HUGGINGFACE_CO_URL_TEMPLATE": address + "/{repo_id}/resolve/{revision}/{filename}",
    }.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    yield asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_repository_is_downloaded_once(hub: list[str]) -> None:
    found = located("someone/some.model-4b")
    assert {each.name for each in found.iterdir()} == {"config.json", "model.safetensors"}
    assert origin(found) == ("someone/some.model-4b", COMMIT)
    assert any("resolve" in path for path in hub)
    hub.clear()
    assert located(Path("someone/some.model-4b")) == found
    assert hub == []
    (tensor,) = inspect(found)["tensors"]
    assert tensor["name"] == "model.norm.weight"


def test_one_file_of_a_repository(hub: list[str]) -> None:
    found = located("someone/some.model-4b/small.gguf")
    assert found.name == "small.gguf"
    assert found.read_bytes() == b"GGUF"
    hub.clear()
    assert located("someone/some.model-4b/small.gguf") == found
    assert hub == []


def test_a_cache_with_a_config_alone_is_no_checkpoint(hub: list[str]) -> None:
    huggingface_hub.hf_hub_download("someone/some.model-4b", "config.json")
    assert (located("someone/some.model-4b") / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("source", "revision", "said"),
    [
        ("someone/nothing", None, "no such folder here, and no such repository on the hub"),
        ("someone/locked", None, "grants access to .*hf auth login"),
        ("someone/some.model-4b", "v2", "has no revision 'v2'; give a branch"),
        ("someone/some.model-4b/large.gguf", None, "has no file large.gguf"),
    ],
)
def test_what_the_hub_refuses(hub: list[str], source: str, revision: str | None, said: str) -> None:
    with pytest.raises(CheckpointError, match=said) as refused:
        located(source, revision)
    assert str(refused.value).startswith(f"{source}: ")
    assert "127.0.0.1" not in str(refused.value)


@pytest.mark.parametrize("source", ["someone/nothing", "someone/locked", "someone/some.model-4b"])
def test_a_token_is_not_printed(
    hub: list[str],
    source: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It goes to the hub, and is in no message."""
    monkeypatch.setenv("HF_TOKEN", "hf_A1b2C3d4E5f6")
    Hub.shown.clear()
    said = ""
    try:
        located(source)
    except CheckpointError as error:
        said = str(error)
    said += "".join(capfd.readouterr())
    assert "A1b2C3d4E5f6" not in said
    assert "Bearer hf_A1b2C3d4E5f6" in Hub.shown


def test_no_network(hub: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=r"not whole in the cache .* or give a folder"):
        located("someone/some.model-4b")
    assert hub == []


def test_what_is_here_is_taken(hub: list[str], tmp_path: Path) -> None:
    here = tmp_path / "someone" / "some.model-4b"
    here.mkdir(parents=True)
    assert located(here) == here
    for name in ("one", "a/b/c", "no/program.mlir", "../a/b"):
        assert located(name) == Path(name)
    assert hub == []
    with pytest.raises(RequestError, match="--revision v2: one is no repository"):
        located("one", "v2")


def test_the_library_is_not_needed_for_a_folder(tmp_path: Path) -> None:
    """Nor is it imported; where a name asks for it and it is missing, that is said."""
    program = (
        "import sys; sys.modules['huggingface_hub'] = None\n"
        "from mxc.compiler.checkpoints.hub import located\n"
        f"located({str(tmp_path)!r})\n"
        "located('someone/model')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert "pip install 'mxc[hub]'" in done.stderr.splitlines()[-1]
