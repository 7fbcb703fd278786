"""Arguments that a function changes in place, as the manifest states them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mxc.errors import ArtifactError, RequestError
from mxc.runtime import load


def test_memory_of_an_argument_for_no_result(
    plain_artifact: Path, rewrite: Callable[..., None]
) -> None:
    main = load(plain_artifact).manifest.functions["main"]
    rewrite(plain_artifact, functions={"main": replace(main, in_place=((0, 9),))})
    with pytest.raises(ArtifactError, match=r"functions\.main\.in_place: .* found 0 and 9"):
        load(plain_artifact)


def test_a_function_that_changes_nothing(plain_artifact: Path) -> None:
    with pytest.raises(RequestError, match="main: has no argument that it changes in place"):
        load(plain_artifact).stateful()
