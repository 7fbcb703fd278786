"""`mxc serve` as a process: it says where it listens, answers, and ends when it is told to."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from typer.testing import CliRunner

from mxc.compiler.cli import app

Serve = Callable[..., tuple["subprocess.Popen[str]", str]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server on a free port; the process, and its address."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> tuple["subprocess.Popen[str]", str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "mxc", "serve", "--port", "0", *words],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "MXC_API_KEY": "secret"},
        )
        started.append(process)
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(r"serving (.*) at (http://127\.0\.0\.1:\d+)\n", line)
        assert found, line + process.stderr.read()
        return process, found[2]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_one_artifact_under_two_names(toy_artifact: Path, serve: Serve) -> None:
    process, url = serve(str(toy_artifact), str(toy_artifact), "--name", "a", "--name", "b")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["a", "b"]
        texts = [
            client.completions.create(model=name, prompt="w1 w2", max_tokens=3).choices[0].text
            for name in ("a", "b")
        ]
        assert all(len(text.split()) == 3 for text in texts)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="no", max_retries=0).models.list()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()


def test_refusals(toy_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*words: str) -> str:
        result = CliRunner().invoke(app, ["serve", *words])
        assert result.exit_code == 1, result.output
        return result.output

    assert "a name of its own" in refused(str(toy_artifact), str(toy_artifact))
    assert "cannot listen on 203.0.113.7" in refused(str(toy_artifact), "--host", "203.0.113.7")
    assert "no such artifact" in refused(str(toy_artifact.with_name("nothing")), "--port", "0")
    nothing = str(toy_artifact.with_name("nothing"))  # not loaded before the options are checked
    monkeypatch.delenv("MXC_API_KEY", raising=False)
    for key in ("", " ", "key "):
        said = refused(nothing, "--port", "0", "--api-key", "good", "--api-key", key)
        assert "an API key must not be empty" in said
        assert len(said.splitlines()) == 1
    monkeypatch.setenv("MXC_API_KEY", "  ")
    assert "MXC_API_KEY has whitespace alone" in refused(nothing, "--port", "0")
    monkeypatch.setenv("MXC_API_KEY", "")  # as if it were not set: the name is what is wrong
    for name in ("", " "):
        said = refused(nothing, "--port", "0", "--name", name)
        assert "the name of a model must not be empty" in said
    monkeypatch.setattr("mxc.compiler.cli.serve.find_spec", lambda name: None)
    assert "pip install 'mxc[serve]'" in refused(str(toy_artifact))
