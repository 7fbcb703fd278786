"""A StepModel that says what a test wants: after each prompt, the next token of one answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mxc.runtime.completions.text_model import TextModel
from mxc.runtime.steps import PageKind, StepPlan


@dataclass
class ScriptedModel:
    """Reads its sequences back from its pages, so that a wrong page breaks the answer."""

    vocabulary: int
    answer: Sequence[int] = ()
    page_size: int = 16
    context: int = 2048
    rows: int = 512
    states: int = 0
    pages: int = 256
    kinds: tuple[PageKind, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.kinds = (PageKind(window=None, pages=self.pages),)
        self.pool = np.full(self.pages * self.page_size, -1)

    def step(self, plan: StepPlan) -> np.ndarray:
        self.pool[plan.slots[0]] = plan.tokens
        logits = np.zeros((len(plan.rows), self.vocabulary), np.float32)
        for row, index in enumerate(plan.rows):
            run = next(r for r, (at, count, _) in enumerate(plan.runs) if at <= index < at + count)
            seen = np.arange(plan.positions[index] + 1)
            pages = plan.pages[0][run][seen // self.page_size]
            tokens = self.pool[pages * self.page_size + seen % self.page_size].tolist()
            logits[row, self.answer[self.given(tokens)]] = 50.0
        return logits

    def given(self, tokens: list[int]) -> int:
        """How many tokens of the answer are there already."""
        return next(
            count
            for count in range(len(self.answer) - 1, -1, -1)
            if tokens[len(tokens) - count :] == list(self.answer[:count])
        )

    def copy_pages(self, kind: int, source: np.ndarray, target: np.ndarray) -> None:
        raise AssertionError("the engine shares full pages alone")

    def copy_state(self, source: int, target: int) -> None:
        raise AssertionError("the model has no states")


def script_of(model: TextModel) -> ScriptedModel:
    """The model below a text model that a test has made of one."""
    found = model.engine.model
    assert isinstance(found, ScriptedModel)
    return found
