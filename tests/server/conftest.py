"""A server in this process, on a port of its own, over models whose answers a test chooses."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn

from mxc.artifact.manifest import CHAT_TEMPLATE
from mxc.compiler.checkpoints.synthetic.tokenizer import write_tokenizer
from mxc.runtime.completions.text_model import TextModel
from mxc.runtime.engine.engine import Engine
from mxc.runtime.engine.schedule import StepLimits
from mxc.runtime.text import Text
from mxc.server.app import make_app
from mxc.server.run import listen
from mxc.server.settings import Settings
from tests.runtime.engine.paged_model import PagedModel
from tests.runtime.engine.scripted_model import ScriptedModel
from tests.server.running import TEMPLATE, Running


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer in the form of gpt-oss, with TEMPLATE."""
    folder = tmp_path_factory.mktemp("files")
    write_tokenizer(folder, 484)
    (folder / CHAT_TEMPLATE).write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def start(files: Path) -> Iterator[Callable[..., Running]]:
    """Start servers: `start(model, settings, queue=..)`; "tiny" is `model`."""
    running: list[Running] = []

    def make(
        model: "ScriptedModel | PagedModel",
        settings: Settings | None = None,
        queue: int = 64,
        sequences: int = 16,
    ) -> Running:
        engine = Engine(model, StepLimits(sequences=sequences), queue)
        models = {"tiny": TextModel(engine, Text.load(files), ())}
        listener = listen("127.0.0.1", 0)
        config = uvicorn.Config(
            make_app(models, settings), log_config=None, lifespan="on", timeout_graceful_shutdown=3
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()

        def stop() -> None:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()

        running.append(Running(listener.getsockname()[1], models, stop))
        return running[-1]

    yield make
    for each in running:
        each.stop()


@pytest.fixture(scope="module")
def scripted(start: Callable[..., Running]) -> Running:
    """A server whose model says what it is told to."""
    return start(ScriptedModel(vocabulary=484))


@pytest.fixture(scope="module")
def random(start: Callable[..., Running]) -> Running:
    """A server whose model has random weights."""
    return start(PagedModel(vocabulary=484, full_pages=300, window_pages=120, context=500))
