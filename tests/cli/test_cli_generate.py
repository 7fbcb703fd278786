"""mxc generate and mxc bench over an artifact whose greedy choice is always token 6."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors
from typer.testing import CliRunner, Result

from mxc.artifact.manifest import CHAT_TEMPLATE, REPORT, TOKENIZER, TOKENIZER_CONFIG
from mxc.compiler.cli import app, generate
from mxc.runtime import load
from mxc.runtime.completions.deltas import CONTENT, Delta
from mxc.runtime.completions.stream import AnswerPiece, AnswerStream
from mxc.runtime.engine.request import Outcome, SampledToken


def mxc(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def answer(*words: object) -> dict[str, Any]:
    result = mxc(*words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_text_in_text_out(toy_artifact: Path) -> None:
    result = mxc("generate", toy_artifact, "--prompt", "w1 w2", "--max-new-tokens", 3)
    assert (result.exit_code, result.stdout) == (0, "w6 w6 w6\n")


def test_json(toy_artifact: Path) -> None:
    got = answer("generate", toy_artifact, "--prompt", "w1 w2", "--max-new-tokens", 3)
    timings = got.pop("timings")
    assert got == {
        "prompt_tokens": [1, 2],
        "tokens": [6, 6, 6],
        "text": "w6 w6 w6",
        "finish_reason": "length",
    }
    assert set(timings) == {
        "load_seconds",
        "prompt_seconds",
        "generate_seconds",
        "prompt_tokens_per_second",
        "generate_tokens_per_second",
    }
    assert all(value > 0 for value in timings.values())


def test_tokens_in_and_no_tokenizer(toy_artifact: Path, rewrite: Callable[..., None]) -> None:
    files = dict(load(toy_artifact).manifest.files)
    del files[TOKENIZER]
    rewrite(toy_artifact, files=files)
    (toy_artifact / TOKENIZER).unlink()
    words = ("generate", toy_artifact, "--prompt-tokens", "1,2", "--max-new-tokens", 2)
    assert mxc(*words).stdout == "6 6 \n"
    assert answer(*words)["text"] is None
    refused = mxc("generate", toy_artifact, "--prompt", "w1")
    assert refused.exit_code == 1
    assert "holds no tokenizer.json" in refused.stderr


def test_default_length_is_what_fits(toy_artifact: Path) -> None:
    got = answer("generate", toy_artifact, "--prompt-tokens", "1,2,3")
    assert len(got["tokens"]) == 14
    assert got["finish_reason"] == "length"


def test_stop_token_and_stop_text(toy_artifact: Path, rewrite: Callable[..., None]) -> None:
    got = answer("generate", toy_artifact, "--prompt-tokens", "1", "--stop", "w6 w6")
    assert (got["text"], got["finish_reason"], got["tokens"]) == ("", "stop", [6, 6])
    model = load(toy_artifact).manifest.model
    assert model is not None
    rewrite(toy_artifact, model=type(model)(**{**vars(model), "eos_tokens": (3, 6)}))
    got = answer("generate", toy_artifact, "--prompt-tokens", "1")
    assert (got["tokens"], got["finish_reason"]) == ([6], "stop")


def test_sampling_options_and_seed(toy_artifact: Path) -> None:
    words = ["generate", toy_artifact, "--prompt-tokens", "1", "--temperature", "30"]
    draws = [answer(*words, "--seed", seed)["tokens"] for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert answer(*words, "--seed", 1, "--top-k", 1)["tokens"] == [6] * 16
    assert answer(*words, "--seed", 1, "--top-p", 0)["tokens"] == [6] * 16
    assert answer(*words, "--seed", 1, "--min-p", 1)["tokens"] == [6] * 16


def test_chat_and_raw(toy_artifact: Path, rewrite: Callable[..., None]) -> None:
    """A prompt is a message of the user where there is a template, and --raw is as it stands.

    The tokenizer puts w0 before a text; a template has said already what comes first.
    """
    files = dict(load(toy_artifact).manifest.files)
    del files[TOKENIZER]
    rewrite(toy_artifact, files=files)
    tokenizer = Tokenizer.from_file(str(toy_artifact / TOKENIZER))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="w0 $A", special_tokens=[("w0", 0)]
    )
    tokenizer.save(str(toy_artifact / TOKENIZER))
    (toy_artifact / CHAT_TEMPLATE).write_text(
        "{% for m in messages %}{{ {'system': 'w1', 'user': 'w2'}[m.role] }} {{ m.content }} "
        "{{ eos_token }} {% endfor %}{% if add_generation_prompt %}w4{% endif %}"
    )
    (toy_artifact / TOKENIZER_CONFIG).write_text('{"eos_token": "w3"}')
    words = ("generate", toy_artifact, "--prompt", "w5", "--max-new-tokens", 1)
    assert answer(*words)["prompt_tokens"] == [2, 5, 3, 4]
    assert answer(*words, "--chat", "--system", "w6")["prompt_tokens"] == [1, 6, 3, 2, 5, 3, 4]
    assert answer(*words, "--raw")["prompt_tokens"] == [0, 5]
    (toy_artifact / CHAT_TEMPLATE).unlink()
    assert answer(*words)["prompt_tokens"] == [0, 5]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either --prompt TEXT or --prompt-tokens 1,2,3"),
        (["--prompt", "w1", "--prompt-tokens", "1"], "give either --prompt"),
        (["--prompt-tokens", "1,x"], "--prompt-tokens wants numbers with commas"),
        (["--prompt-tokens", "1,7"], "token 7 of the prompt is outside of the vocabulary, 0 to 6"),
        (["--prompt-tokens", ",".join("1" * 17)], "a prompt of 17 tokens is longer than the 16"),
        (["--prompt-tokens", "1", "--max-new-tokens", "17"], "1 tokens and 17 new ones is longer"),
        (
            ["--prompt-tokens", "1", "--max-new-tokens", "0"],
            "the number of new tokens must be at least 1, got 0",
        ),
        (["--prompt-tokens", "1", "--temperature", "-1"], "temperature must be at least 0, got -1"),
        (["--prompt-tokens", "1", "--top-p", "2"], "top-p must be 0 to 1, got 2"),
        (["--prompt-tokens", "1", "--stop", ""], "a stop string must not be empty"),
        (["--prompt-tokens", "1", "--system", "x"], "--system is for --prompt"),
        (["--prompt", "w1", "--chat"], "has no chat template; use --raw"),
        (["--prompt", "w1", "--system", "x"], "--system needs a chat template"),
        (["--prompt", "w1", "--system", "x", "--raw"], "--system cannot be used with --raw"),
        (["--prompt-tokens", "1", "--device", "abacus"], "device 'abacus' cannot run it"),
        (["--prompt-tokens", "1", "--threads", "0"], "threads must be at least 1, got 0"),
        (["--prompt", ""], "--prompt is empty, and without a chat there is nothing to continue"),
        (["--prompt", "w1 \udcff"], "character 3 of the text is '\\udcff'"),
        (["--prompt-tokens", "1", "--chat"], "--chat is for --prompt"),
    ],
)
def test_refused_requests(toy_artifact: Path, words: list[str], message: str) -> None:
    result = mxc("generate", toy_artifact, *words)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_bench(toy_artifact: Path) -> None:
    result = mxc("bench", toy_artifact, "--prompt", 6, "--generate", 4, "--threads", 1, "--json")
    assert result.exit_code == 0, result.stderr
    got = json.loads(result.stdout)
    assert got["threads"] == 1
    assert got["target"] == "cpu"
    assert got["peak_memory_bytes"] > 1 << 20
    for name in ("prompt_tokens_per_second", "generate_tokens_per_second", "load_seconds"):
        assert got[name] > 0
    shown = mxc("bench", toy_artifact, "--prompt", 6, "--generate", 4)
    assert "prompt of 6" in shown.stdout
    refused = mxc("bench", toy_artifact, "--prompt", 14, "--generate", 4)
    assert refused.exit_code == 1
    assert "longer than the 16 tokens" in refused.stderr


def test_bench_profile(toy_artifact: Path) -> None:
    """The operations are named by the report and, with what is between them, are the whole call."""
    row = {
        "function": "step",
        "name": "model.layers.3.mix",
        "bytes_moved": 80,
        "flops": 20,
        "samples": {},
    }
    kernels = [f"step_dispatch_{n}" for n in range(4)]
    named = [{**row, "kernel": kernel} for kernel in kernels]
    (toy_artifact / REPORT).write_text(json.dumps({"operations": named, "samples": []}))
    words = ("bench", toy_artifact, "--prompt", 6, "--generate", 2, "--threads", 2, "--profile")
    got = json.loads(mxc(*words, "--json").stdout)
    assert got["generate"] == 2
    assert [(each["position"], each["tokens"]) for each in got["profiles"]] == [(2, 4), (6, 1)]
    for each in got["profiles"]:
        parts = sum(row["milliseconds"] for row in each["operations"])
        parts += each["between_operations"] + each["around_operations"]
        assert parts == pytest.approx(each["milliseconds"])
    shown = mxc(*words).stdout
    assert "step of 4 rows at position 2: " in shown
    assert "step of 1 row at position 6: " in shown
    assert "between operations" in shown
    (toy_artifact / REPORT).unlink()
    refused = mxc(*words)
    assert refused.exit_code == 1
    assert "report.json: does not say what the dispatches are" in refused.stderr


def test_bench_of_no_language_model(plain_artifact: Path) -> None:
    result = mxc("bench", plain_artifact)
    assert result.exit_code == 1
    assert "not a language model" in result.stderr


@pytest.mark.parametrize(
    ("terminal", "shown"), [(True, r"\x1b[2Ja\x1b[2Ja"), (False, "\x1b[2Ja" * 2)]
)
def test_a_terminal_does_not_obey_a_model(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, shown: str
) -> None:
    stream = AnswerStream()
    for token in (1, 2):
        stream.put(AnswerPiece((Delta(CONTENT, "\x1b[2Ja"),), SampledToken(token)))
    stream.completion.outcome = Outcome(
        reason="length", prompt_tokens=1, generated_tokens=2, cached_tokens=0,
        submitted=0.0, started=0.0, first_token=1.0, ended=2.0,
    )  # fmt: skip
    stream.put(None)
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stdout", out)
    outcome = generate._print_answer(stream, [1], has_text=True, show=True)
    assert out.getvalue() == shown + "\n"
    assert outcome.text == "\x1b[2Ja" * 2
