"""A Gymnasium space for text in any script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Text
from gymnasium.spaces.utils import flatten, unflatten
from gymnasium.vector.utils import read_from_shared_memory
from numpy.typing import NDArray

_SIZE = 0x110000
_SAMPLED = (
    "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789 .,;:!?'\"()-\n"
    "äöüßéèçñøåœłşžабвгдежзиклмнопрстуαβγδεζηθλμπσωאבגדהابتثجحあいうえおアイウエオ你好我是的不在人有他这中大来上国😀🙂💧"
)
"""What `sample` draws from: several scripts, spaces, punctuation and signs outside the basic plane."""


class _Everything(frozenset[str]):
    """The set of all code points, without holding them."""

    def __contains__(self, char: object) -> bool:
        return isinstance(char, str) and len(char) == 1

    def __len__(self) -> int:
        return _SIZE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Everything)

    def __hash__(self) -> int:
        return _SIZE

    def __iter__(self) -> Iterator[str]:
        return map(chr, range(_SIZE))


class _Characters(Sequence[str]):
    """All code points in order, without holding them."""

    def __getitem__(self, index: Any) -> Any:
        return chr(index)

    def __len__(self) -> int:
        return _SIZE


class UnicodeText(Text):
    """Text of any characters, up to `max_length`; `gymnasium.spaces.Text` knows only a listed alphabet.

    Args:
        max_length: Most characters.
        min_length: Fewest characters.
        seed: Seed for `sample`, or a generator.
    """

    def __init__(self, max_length: int, *, min_length: int = 0, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(max_length, min_length=min_length, charset=_SAMPLED, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a random text of at most 200 characters; masks are not supported.

        Raises:
            ValueError: A mask or probabilities were given.
        """
        if mask is not None or probability is not None:
            raise ValueError("UnicodeText.sample takes no mask and no probabilities: there are 1,114,112 characters")
        most = max(self.min_length, min(self.max_length, 200))
        length = int(self.np_random.integers(self.min_length, most + 1))
        return "".join(_SAMPLED[i] for i in self.np_random.integers(len(_SAMPLED), size=length))

    def contains(self, x: Any) -> bool:
        """Whether `x` is a string of a fitting length."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length

    @property
    def character_set(self) -> frozenset[str]:
        """All code points."""
        return _EVERYTHING

    @property
    def character_list(self) -> Any:
        """All code points in order."""
        return _CHARACTERS

    def character_index(self, char: str) -> np.int32:
        """Return a character's code point."""
        return np.int32(ord(char))

    @property
    def characters(self) -> str:
        """A word for the alphabet, in place of its million characters."""
        return "unicode"

    def __repr__(self) -> str:
        return f"UnicodeText({self.min_length}, {self.max_length})"

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, UnicodeText)
        return same and (self.min_length, self.max_length) == (other.min_length, other.max_length)  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self.min_length, self.max_length))


_EVERYTHING = _Everything()
_CHARACTERS = _Characters()


@flatten.register(UnicodeText)
def _flatten(space: UnicodeText, x: str) -> NDArray[np.int32]:  # type: ignore[misc]
    """Code points, padded with 0x110000: shape (max_length,)."""
    out = np.full(space.max_length, _SIZE, dtype=np.int32)
    out[: len(x)] = np.frombuffer(x.encode("utf-32-le", "surrogatepass"), dtype=np.int32)
    return out


@unflatten.register(UnicodeText)
def _unflatten(space: UnicodeText, x: NDArray[np.int32]) -> str:  # type: ignore[misc]
    kept = x[x < _SIZE].astype("<i4")
    return kept.tobytes().decode("utf-32-le", "surrogatepass")


class _LiveTexts(Sequence[str]):
    """Texts in shared memory, read when they are looked at.

    `AsyncVectorEnv` reads its shared buffer once and relies on numpy views after that; plain strings would stay those
    of the first look. It copies observations before it hands them out, and the copy is an ordinary tuple.
    """

    def __init__(self, space: UnicodeText, memory: Any, n: int) -> None:
        self._space, self._memory, self._n = space, memory, n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: Any) -> Any:
        return self._now()[index]

    def __deepcopy__(self, memo: Any) -> tuple[str, ...]:
        return self._now()

    def __repr__(self) -> str:
        return repr(self._now())

    def _now(self) -> tuple[str, ...]:
        data = np.frombuffer(self._memory.get_obj(), dtype=np.int32).reshape(self._n, self._space.max_length)
        return tuple(_unflatten(self._space, row) for row in data)


@read_from_shared_memory.register(UnicodeText)
def _read(space: UnicodeText, shared_memory: Any, n: int = 1) -> Sequence[str]:
    return _LiveTexts(space, shared_memory, n)
