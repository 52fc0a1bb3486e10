"""Replies for all live conversations together: drawing tokens, the batch, and the memory of what has been read.

What makes it fast on a CPU: the vocabulary head runs on the last position only; rows that have finished leave the
batch; and what has been read of a conversation stays in memory, so that the next turn reads no more than the new
message.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from echo_env.agents.attention import memory_layer

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel
    from transformers.cache_utils import DynamicLayer

_HEAD = 256
"""Tokens looked at before a whole vocabulary is sorted for top-p."""
_READ = 8192
"""Most tokens, padding included, that one forward pass reads."""


def pick(logits: Tensor, noise: Tensor, temperature: float, top_p: float) -> Tensor:
    """Draw one token for each row by inverting its cumulative distribution, likeliest token first.

    Args:
        logits: [B, V].
        noise: [B], uniform in [0, 1).
        temperature: Divides the logits; 0 is greedy.
        top_p: The smallest set of likeliest tokens with at least this mass is drawn from.

    Returns:
        Token ids, [B]. A row's token depends on that row alone.
    """
    return draw(logits, noise, temperature, top_p)[0]


def draw(logits: Tensor, noise: Tensor, temperature: float, top_p: float) -> tuple[Tensor, Tensor]:
    """Draw as `pick` does, and return the tokens with their log-probabilities under what was drawn from, both [B]."""
    import torch

    if temperature == 0:
        return logits.argmax(-1), logits.new_zeros(len(logits), dtype=torch.float32)
    mass = torch.softmax(logits.float() / temperature, -1)
    if top_p >= 1:
        drawn, _ = _invert(mass, noise, 1.0)
        return drawn, _log(mass.gather(-1, drawn[:, None])[:, 0])
    top, tokens = mass.topk(min(_HEAD, mass.shape[-1]))
    place, kept = _invert(top, noise, top_p)
    drawn = tokens.gather(-1, place[:, None])[:, 0]
    for row in (top.sum(-1) < top_p).nonzero()[:, 0].tolist():
        top, tokens = mass[row].sort(descending=True)
        place, kept[row] = _invert(top[None], noise[row : row + 1], top_p)
        drawn[row] = tokens[place[0]]
    return drawn, _log(mass.gather(-1, drawn[:, None])[:, 0] / kept)


def _log(mass: Tensor) -> Tensor:
    """Return the logarithm; of what a parallel sum rounds to nothing, a very small number's."""
    import torch

    return mass.clamp(min=torch.finfo(mass.dtype).tiny).log()


def _invert(mass: Tensor, noise: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Return where the running sum of `mass` [B, K] passes `noise` [B] times the mass kept, and the mass kept."""
    total = mass.cumsum(-1)
    most = mass.shape[-1] - 1
    if top_p >= 1:
        kept = total[:, most:]
        return (total <= noise.to(total)[:, None] * kept).sum(-1).clamp(max=most), kept[:, 0]
    last = (total < top_p).sum(-1, keepdim=True).clamp(max=most)
    kept = total.gather(-1, last)
    place = (total <= noise.to(total)[:, None] * kept).sum(-1, keepdim=True).minimum(last)
    return place[:, 0], kept[:, 0]


@dataclass(frozen=True, slots=True)
class Past:
    """What a model has read of one conversation: its tokens, and their keys and values, each [heads, T, size]."""

    ids: list[int]
    states: list[tuple[Tensor, Tensor]]

    def start(self, length: int) -> Past:
        """Return the first `length` tokens of it; the states are views."""
        return Past(self.ids[:length], [(k[:, :length], v[:, :length]) for k, v in self.states])


class Memory:
    """The pasts of recent conversations, newest first, up to so many tokens.

    In a conversation of 20 turns the prompts add up to ten times its length: without this, reading them is most of
    the work on a CPU.

    Args:
        tokens: Most tokens kept, over all conversations; 0 keeps none.
    """

    def __init__(self, tokens: int) -> None:
        self._limit = tokens
        self._pasts: list[Past] = []
        self._weights = -1

    def check(self, model: PreTrainedModel) -> None:
        """Forget everything where an optimiser or a load has changed the weights in place."""
        weights = weights_version(model)
        if weights != self._weights:
            self.clear()
        self._weights = weights

    def clear(self) -> None:
        """Forget everything."""
        self._pasts.clear()

    def recall(self, ids: list[int]) -> Past:
        """Return the longest remembered start of `ids`, its last token excluded: that one has to be read again."""
        best, past = 0, Past([], [])
        for known in self._pasts:
            length = common(known.ids, ids[:-1])
            if length > best:
                best, past = length, known
        return past.start(best)

    def add(self, pasts: list[Past]) -> None:
        """Remember these in place of those that they continue; drop the oldest beyond the limit."""
        old = [p for p in self._pasts if not any(common(p.ids, n.ids) == len(p.ids) for n in pasts)]
        self._pasts, room = [], self._limit
        for past in [*pasts, *old]:
            room -= len(past.ids)
            if room >= 0:
                self._pasts.append(past)


def weights_version(model: PreTrainedModel) -> int:
    """Return a number that grows whenever an optimiser or a load changes the weights in place."""
    return sum(p._version for p in model.parameters())


class Live:
    """A batch of conversations in the model's key-value memory, each row padded on the left.

    Args:
        pasts: What has been read of each.
        model: The model that read it.
    """

    def __init__(self, pasts: Sequence[Past], model: PreTrainedModel) -> None:
        import torch
        from transformers.cache_utils import Cache

        self._model, self._device = model, model.device
        self._ids = [list(p.ids) for p in pasts]
        self._cache = Cache(layer_class_to_replicate=memory_layer())
        self._mask = self._right([torch.ones(len(p.ids), dtype=torch.long) for p in pasts])
        for layer in range(max(len(p.states) for p in pasts)):
            self._restore(layer, pasts)

    def _restore(self, layer: int, pasts: Sequence[Past]) -> None:
        like = next(p.states[layer] for p in pasts if p.states)
        for_all = []
        for part in (0, 1):
            heads, _, size = like[part].shape
            states = like[part].new_zeros(len(pasts), heads, self._mask.shape[1], size)
            for row, past in enumerate(pasts):
                if past.ids:
                    states[row, :, -len(past.ids) :] = past.states[layer][part]
            for_all.append(states)
        self._cache.update(for_all[0], for_all[1], layer)

    def _right(self, rows: Sequence[Tensor]) -> Tensor:
        """Return rows of unlike length as one tensor [B, T], right-aligned, zeros on the left."""
        from torch.nn.utils.rnn import pad_sequence

        return pad_sequence(list(rows), batch_first=True, padding_side="left").to(self._device)

    def feed(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Read more of every row, at least a token each; return the logits of what comes next, [B, V]."""
        import torch

        width = max(map(len, rows))
        tokens = torch.tensor([[0] * (width - len(r)) + list(r) for r in rows], device=self._device)
        read = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows], device=self._device)
        self._mask = torch.cat([self._mask, read], 1)
        if width == 1:
            places = self._mask.sum(-1, keepdim=True) - 1
        else:
            places = (self._mask.cumsum(-1) - 1).clamp(min=0)[:, -width:]
        out = self._model(
            input_ids=tokens,
            attention_mask=self._mask,
            position_ids=places,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        for ids, row in zip(self._ids, rows, strict=True):
            ids.extend(row)
        logits: Tensor = out.logits[:, -1]
        return logits

    def spread(self, rows: list[int]) -> None:
        """Make a batch of these rows, some of them more than once."""
        import torch

        for layer in self._cache.layers:
            cast("Any", layer).spread(torch.tensor(rows, device=self._device))
        self._mask = self._mask[rows]
        self._ids = [list(self._ids[r]) for r in rows]

    def keep(self, rows: list[int]) -> None:
        """Drop all but these rows."""
        import torch

        if len(rows) < len(self._ids):
            self._cache.batch_select_indices(torch.tensor(rows))
            self._mask = self._mask[rows]
            self._ids = [self._ids[r] for r in rows]

    def past(self, row: int) -> Past:
        """Return a copy of what has been read of a row, without its padding."""
        where = self._mask[row].nonzero()[:, 0]
        layers = cast("list[DynamicLayer]", self._cache.layers)
        states = [(cast("Tensor", y.keys)[row][:, where], cast("Tensor", y.values)[row][:, where]) for y in layers]
        return Past(list(self._ids[row]), states)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A reply as it was drawn."""

    ids: list[int]
    """The token that ended it included."""
    logprobs: list[float]
    past: Past | None
    """What has been read of the conversation: all but the last id. None where nothing is to be remembered."""


def generate(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    known: Sequence[Past],
    noise: Tensor,
    limits: Sequence[int],
    *,
    stops: frozenset[int],
    temperature: float,
    top_p: float,
    remember: bool = True,
) -> list[Drawn]:
    """Draw a reply to each prompt, all of them together.

    Args:
        model: In evaluation mode; the caller turns gradients off.
        prompts: At least one.
        known: What has been read of each: a start of the prompt, at least its last id excluded.
        noise: [B, N], uniform in [0, 1); N is the largest limit.
        limits: Most ids of each reply, at least 1.
        stops: Ids that end a reply.
        temperature: As for `pick`.
        top_p: As for `pick`.
        remember: Whether to return what has been read.
    """
    live, logits = _read(model, prompts, known)
    replies: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    pasts: list[Past | None] = [None] * len(prompts)
    rows, noise, step = list(range(len(prompts))), noise.to(logits.device), 0
    while True:
        drawn, chances = draw(logits, noise[rows, step], temperature, top_p)
        tokens, step = drawn.tolist(), step + 1
        ended = []
        for place, (row, token, chance) in enumerate(zip(rows, tokens, chances.tolist(), strict=True)):
            replies[row].append(token)
            logprobs[row].append(chance)
            if token in stops or step >= limits[row]:
                ended.append(place)
                pasts[row] = live.past(place) if remember else None
        if len(ended) == len(rows):
            return [Drawn(*one) for one in zip(replies, logprobs, pasts, strict=True)]
        going = _closed_up(len(rows), ended)
        live.keep(going)
        rows = [rows[place] for place in going]
        logits = live.feed([[tokens[place]] for place in going])


def _closed_up(rows: int, ended: Sequence[int]) -> list[int]:
    """Return the rows that go on, the last of them in the places of those that ended: few move, and never to the right.

    Of rows 0..5 without 1 and 2: [0, 5, 4, 3].
    """
    gone, going = set(ended), list(range(rows - len(ended)))
    movers = (r for r in range(rows - 1, len(going) - 1, -1) if r not in gone)
    return [next(movers) if place in gone else place for place in going]


def _read(model: PreTrainedModel, prompts: Sequence[list[int]], known: Sequence[Past]) -> tuple[Live, Tensor]:
    """Read what is not known of the prompts, rows of like length together; return batch and logits [B, V].

    Prompts that are the same, a group's first turn for example, are read once.
    """
    import torch

    seen: dict[tuple[int, ...], int] = {}
    source = [row if known[row].ids else seen.setdefault(tuple(p), row) for row, p in enumerate(prompts)]
    once = sorted(set(source))
    if len(once) < len(prompts):
        live, logits = _read(model, [prompts[r] for r in once], [known[r] for r in once])
        places = [once.index(row) for row in source]
        live.spread(places)
        return live, logits[places]
    rest = [p[len(k.ids) :] for p, k in zip(prompts, known, strict=True)]
    groups = list(alike([len(r) for r in rest]))
    pasts: dict[int, Past] = {}
    following: dict[int, Tensor] = {}
    for rows in groups:
        live = Live([known[r] for r in rows], model)
        logits = live.feed([rest[r] for r in rows])
        if len(groups) == 1:
            return live, logits
        for place, row in enumerate(rows):
            pasts[row], following[row] = live.past(place), logits[place]
    order = range(len(prompts))
    return Live([pasts[r] for r in order], model), torch.stack([following[r] for r in order])


def common(one: list[int], other: list[int]) -> int:
    """Return the length of the common start of two lists."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next((i for i in range(length) if one[i] != other[i]), length)


def alike(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield groups of rows to read together: little padding (a quarter and 16 tokens), at most `_READ` tokens.

    One row that has to be read from the start must not pad all others to its length.
    """
    group: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda r: lengths[r]):
        most = lengths[group[0]] * 1.25 + 16 if group else 0
        if group and (lengths[row] > most or (len(group) + 1) * lengths[row] > _READ):
            yield sorted(group)
            group = []
        group.append(row)
    yield sorted(group)
