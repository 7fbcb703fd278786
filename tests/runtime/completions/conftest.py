"""Modules of the engine's tests, for the tests of this folder."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mxc.compiler.checkpoints.synthetic.tokenizer import write_tokenizer
from mxc.runtime.completions.text_model import TextModel
from mxc.runtime.engine.engine import Engine
from mxc.runtime.text import Text
from tests.runtime.engine.paged_model import PagedModel
from tests.runtime.engine.scripted_model import ScriptedModel


@pytest.fixture(scope="session")
def harmony_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer and template in the form of gpt-oss."""
    folder = tmp_path_factory.mktemp("harmony")
    write_tokenizer(folder, 484)
    return folder


@pytest.fixture
def text_model() -> Iterator[Callable[..., TextModel]]:
    """Make text models of files and a step model; the model of numpy by default."""
    made: list[TextModel] = []

    def make(files: Path, model: "PagedModel | ScriptedModel | None" = None) -> TextModel:
        text = Text.load(files)
        size = text.tokenizer.get_vocab_size()
        steps = PagedModel(vocabulary=size, full_pages=80, context=300) if model is None else model
        made.append(TextModel(Engine(steps), text, ()))
        return made[-1]

    yield make
    for each in made:
        each.close()
