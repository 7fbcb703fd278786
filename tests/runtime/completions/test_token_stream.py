"""Answers of tokens alone, on an artifact whose greedy choice is always token 6."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mxc.errors import RequestError
from mxc.runtime import load
from mxc.runtime.completions.opened import open_engine
from mxc.runtime.completions.token_stream import start_tokens
from mxc.runtime.engine.engine import Engine
from mxc.runtime.engine.request import Sampling


@pytest.fixture
def engine(toy_artifact: Path) -> Iterator[Engine]:
    made = open_engine(load(toy_artifact))
    yield made
    made.close()


def test_tokens(engine: Engine) -> None:
    stream = start_tokens(engine, [1, 2, 3], 5)
    assert [piece.drawn.token for piece in stream if piece.drawn is not None] == [6] * 5
    assert stream.completion.tokens == [6] * 5
    assert (stream.completion.text, stream.completion.finish_reason) == ("", "length")
    whole = start_tokens(engine, [1, 2, 3], 14).result()
    assert len(whole.tokens) == 14


def test_ends(engine: Engine) -> None:
    ended = start_tokens(engine, [1, 2, 3], 5, ends=[3, 6]).result()
    assert (ended.tokens, ended.finish_reason) == ([6], "stop")


def test_sampling(engine: Engine) -> None:
    draws = [
        start_tokens(engine, [1], 16, sampling=Sampling(temperature=30, seed=seed)).result().tokens
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]


def test_refused(engine: Engine) -> None:
    with pytest.raises(RequestError, match="are more than the 16 tokens"):
        start_tokens(engine, [1, 2, 3], 15)
    with pytest.raises(RequestError, match="must be at least 1, got 0"):
        start_tokens(engine, [1], 0)


def test_not_a_language_model(plain_artifact: Path) -> None:
    with pytest.raises(RequestError, match="not a language model"):
        open_engine(load(plain_artifact))
