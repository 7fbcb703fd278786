"""Pages of the KV cache: reference counts, and keys of full pages for the prefix cache.

The key of a full page is a hash of all tokens up to its end, so that another sequence that begins
with the same tokens uses the page instead of computing it again. Full pages are never written
again, so that sharing needs no copy. A page that no sequence uses keeps its contents until it is
evicted; the least recently used page is evicted first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class PageCounts:
    """Numbers of pages that are in use, cached without a user, and empty."""

    used: int
    cached: int
    free: int


class PagePool:
    """The pages 0 to `count` - 1 of one kind."""

    def __init__(self, count: int) -> None:
        """Create a pool of `count` free pages."""
        self._free = list(reversed(range(count)))
        self._users = [0] * count
        self._key: dict[int, bytes] = {}
        self._page: dict[bytes, int] = {}
        #: Cached pages without users, the least recently used first.
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Number of pages that `new` can allocate."""
        return len(self._free) + len(self._cached)

    @property
    def counts(self) -> PageCounts:
        """Numbers of used, cached and free pages."""
        unused = self.available
        return PageCounts(
            used=len(self._users) - unused, cached=len(self._cached), free=len(self._free)
        )

    @property
    def used(self) -> list[int]:
        """The pages that sequences use, ascending."""
        return [page for page, count in enumerate(self._users) if count]

    def grow(self, count: int) -> None:
        """Grow to `count` pages; the additional ones are free."""
        known = len(self._users)
        self._free[:0] = reversed(range(known, count))
        self._users += [0] * (count - known)

    def new(self) -> int:
        """Allocate a page with one user, by eviction if needed; IndexError if none is available."""
        if self._free:
            page = self._free.pop()
        elif self._cached:
            page, _ = self._cached.popitem(last=False)
            del self._page[self._key.pop(page)]
        else:
            raise IndexError("no page is available")
        self._users[page] = 1
        return page

    def find(self, key: bytes) -> int | None:
        """Return the page that was published under `key`, or None."""
        return self._page.get(key)

    def unused(self, pages: Iterable[int]) -> int:
        """Return how many of `pages` have no user."""
        return sum(self._users[page] == 0 for page in pages)

    def unshared(self, pages: Iterable[int]) -> int:
        """Return how many of `pages` have one user."""
        return sum(self._users[page] == 1 for page in pages)

    def share(self, pages: Iterable[int]) -> None:
        """Add one user to each of `pages`, which are in use or cached."""
        for page in pages:
            self._users[page] += 1
            self._cached.pop(page, None)

    def publish(self, page: int, key: bytes) -> None:
        """Make a full page findable by `key`, unless another page is known by that key."""
        if key not in self._page and page not in self._key:
            self._page[key] = page
            self._key[page] = key

    def release(self, pages: Sequence[int]) -> None:
        """Remove one user from each of `pages`, the pages of one sequence in order.

        The last page is evicted first, because it is useless without the pages before it.
        """
        for page in reversed(pages):
            self._users[page] -= 1
            if self._users[page]:
                continue
            if page in self._key:
                self._cached[page] = None
            else:
                self._free.append(page)


def next_key(before: bytes, tokens: Sequence[int]) -> bytes:
    """Return the key of a full page with `tokens`, which follows the page with key `before`."""
    return hashlib.blake2b(before + np.asarray(tokens, np.int32).tobytes(), digest_size=16).digest()


def page_keys(tokens: Sequence[int], page_size: int) -> list[bytes]:
    """Return the keys of all full pages of a sequence that begins with `tokens`."""
    keys: list[bytes] = []
    for end in range(page_size, len(tokens) + 1, page_size):
        keys.append(next_key(keys[-1] if keys else b"", tokens[end - page_size : end]))
    return keys
