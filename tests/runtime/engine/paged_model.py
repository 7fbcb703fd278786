"""A language model of numpy with two layers of attention over pages, and the same without pages.

One layer sees everything, one a window. Logits depend on every key and value in sight, rows are
computed one by one in one order, so that a step's other rows change no bit, and a page that was
never written holds NaN.
"""

import threading
import time
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from mxc.runtime.steps import PageKind, StepPlan

VOCABULARY = 29
WIDTH = 8
WINDOW = 6
KINDS = 2


@cache
def weights(vocabulary: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    shapes = {"embed": (vocabulary, WIDTH), "where": (512, WIDTH), "head": (WIDTH, vocabulary)}
    shapes |= {f"{name}{layer}": (WIDTH, WIDTH) for name in "qkv" for layer in range(KINDS)}
    return {name: random.standard_normal(shape) for name, shape in shapes.items()}


def attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    scores = np.array([float(query @ key) for key in keys]) / 4
    chances = np.exp(scores - scores.max())
    total = np.zeros(WIDTH)
    for chance, value in zip(chances / chances.sum(), values, strict=True):
        total += chance * value
    return total


def first_seen(layer: int, position: int) -> int:
    return 0 if layer == 0 else max(0, position - WINDOW + 1)


def dense_logits(tokens: list[int]) -> np.ndarray:
    """Logits past the last of `tokens`, computed without a cache."""
    w = weights(VOCABULARY)
    rows = [w["embed"][token] + w["where"][at] for at, token in enumerate(tokens)]
    for layer in range(KINDS):
        keys = [row @ w[f"k{layer}"] for row in rows]
        values = [row @ w[f"v{layer}"] for row in rows]
        rows = [
            np.tanh(
                row
                + attend(
                    row @ w[f"q{layer}"],
                    np.array(keys[first_seen(layer, at) : at + 1]),
                    np.array(values[first_seen(layer, at) : at + 1]),
                )
            )
            for at, row in enumerate(rows)
        ]
    return (rows[-1] @ w["head"]).astype(np.float32)


@dataclass
class PagedModel:
    """A StepModel that refuses plans which its Protocol forbids."""

    full_pages: int = 64
    window_pages: int = 32
    page_size: int = 4
    context: int = 256
    rows: int = 512
    seconds: float = 0.0
    vocabulary: int = VOCABULARY
    states: int = 0
    steps: list[StepPlan] = field(default_factory=list)
    #: Raised by the next step.
    failure: Exception | None = None
    #: A step waits for it.
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()
        self.kinds = (
            PageKind(window=None, pages=self.full_pages),
            PageKind(window=WINDOW, pages=self.window_pages),
        )
        self.pool = [
            np.full((2, kind.pages * self.page_size, WIDTH), np.nan) for kind in self.kinds
        ]

    def step(self, plan: StepPlan) -> np.ndarray:
        self.gate.wait(30)
        time.sleep(self.seconds)
        if self.failure is not None:
            raise self.failure
        self.check(plan)
        self.steps.append(plan)
        w = weights(self.vocabulary)
        rows = list(w["embed"][plan.tokens] + w["where"][plan.positions])
        for layer in range(KINDS):
            keys, values = self.pool[layer]
            for row, slot in zip(rows, plan.slots[layer], strict=True):
                keys[slot] = row @ w[f"k{layer}"]
                values[slot] = row @ w[f"v{layer}"]
            for run, (start, count, _) in enumerate(plan.runs):
                for index in range(start, start + count):
                    position = int(plan.positions[index])
                    seen = np.arange(first_seen(layer, position), position + 1)
                    pages = plan.pages[layer][run][seen // self.page_size]
                    at = pages * self.page_size + seen % self.page_size
                    row = rows[index]
                    found = attend(row @ w[f"q{layer}"], keys[at], values[at])
                    rows[index] = np.tanh(row + found)
        wanted = [rows[index] @ w["head"] for index in plan.rows]
        return np.array(wanted).reshape(-1, self.vocabulary).astype(np.float32)

    def check(self, plan: StepPlan) -> None:
        assert 1 <= len(plan.tokens) <= self.rows
        end = 0
        for run, (start, count, before) in enumerate(plan.runs):
            assert start == end
            assert count >= 1
            end += count
            assert (plan.positions[start:end] == np.arange(before, before + count)).all()
            for kind in range(KINDS):
                pages = plan.pages[kind][run][plan.positions[start:end] // self.page_size]
                inside = plan.positions[start:end] % self.page_size
                assert (plan.slots[kind][start:end] == pages * self.page_size + inside).all()
        assert end == len(plan.tokens)
        for kind, slots in enumerate(plan.slots):
            assert len(set(slots.tolist())) == len(slots), "two rows write one place"
            assert slots.max() < self.kinds[kind].pages * self.page_size
            # A page that a run writes is in no other run's list: sharing is for full pages alone.
            written = [
                set((slots[start : start + count] // self.page_size).tolist())
                for start, count, _ in plan.runs
            ]
            for run, (_, count, before) in enumerate(plan.runs):
                first = first_seen(kind, before) // self.page_size
                last = (before + count - 1) // self.page_size
                seen = set(plan.pages[kind][run][first : last + 1].tolist())
                for other, pages in enumerate(written):
                    assert other == run or not pages & seen, "a shared page is written"

    def copy_pages(self, kind: int, source: np.ndarray, target: np.ndarray) -> None:
        raise AssertionError("the engine shares full pages alone")

    def copy_state(self, source: int, target: int) -> None:
        raise AssertionError("the model has no states")
