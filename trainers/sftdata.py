"""Conversations to fine-tune on: read and checked, mixed by proportion, put in order, cut into ids and masks.

Two kinds of source: JSON lines as `echo-env synthesize` writes them, and recorded runs (a run folder, or a folder of
them). What is measured on is never trained on: a conversation with a person of `benchmark`, `benchmark-zh` or `dev` is
refused, by the person's id, by the recorded split and by the scenario's digest.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from echo_env.agents.embedded.language import voiced_feelings
from echo_env.agents.synthesis.conversations import Conversation
from echo_env.agents.synthesis.recorded import counts_of
from echo_env.cases import episode_case
from echo_env.errors import ConfigError, EchoError, RecordError
from echo_env.profiles import get_scenario, scenario_ids
from echo_env.record import RunFolder
from echo_env.scorers import get_scorer
from echo_env.trainers.job import NEVER_TRAINED
from echo_env.types import Episode, Message, Record

MEASURED = NEVER_TRAINED | {"dev"}
"""Splits that are measured on."""
Order = Literal["shuffle", "staged"]


class Source(Record):
    """One part of a mix."""

    path: Path
    """A file of conversations, a run folder, or a folder of run folders."""
    share: float = Field(1.0, gt=0)
    """Weight among the sources; they need not sum to 1."""
    policies: tuple[str, ...] = ()
    """Only conversations of these companions, by the first part of their id ("skilled-1" is `skilled`); empty: all."""
    best: int = Field(0, ge=0)
    """Rejection sampling: keep this many conversations of each person, the best by `best_of`; 0 keeps all."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A whole conversation, the user's message first and a reply last."""

    id: str
    origin: str
    """File and line, or episode file."""
    companion: str
    """Who replied."""
    scenario: str
    """The person; empty where the conversation has none of ours."""
    language: str
    system: str
    """The system prompt it was held under; empty where none is recorded."""
    messages: tuple[Message, ...]
    distance: float | None = None
    """norm(P0) of the person, in points; None where there is no scenario."""
    success: bool | None = None
    """Whether it ended in success; None where nobody judged it."""
    epm_q: float | None = None
    """Of a recorded episode, 0..100."""
    returned: float | None = None
    """Sum of its turns' rewards; None where one is missing."""

    @property
    def turns(self) -> int:
        """Replies."""
        return len(self.messages) // 2


# ---- reading -------------------------------------------------------------------------------------------------------


def read(path: Path) -> list[Chat]:
    """Read all conversations of a source, in the order in which they stand.

    Raises:
        ConfigError: There is no such source, it is empty, or it holds people that are measured on.
        RecordError: A line is no conversation; the message names file, line and what is wrong.
    """
    if path.is_dir():
        folders = [path] if (path / "run.json").exists() else sorted(f.parent for f in path.glob("*/run.json"))
        chats = [chat for folder in folders for chat in _recorded(RunFolder(folder))]
    elif path.is_file():
        chats = list(_lines(path))
    else:
        raise ConfigError(f"there are no conversations at {path}", "a .jsonl of `echo-env synthesize`, or a run folder")
    if not chats:
        raise ConfigError(f"{path} holds no finished conversation", "is it a run folder, or a .jsonl of conversations?")
    return chats


def _lines(path: Path) -> Iterator[Chat]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{path}, line {number}"
            try:
                conversation = Conversation.model_validate_json(line)
            except ValidationError as e:
                first = e.errors()[0]
                field = ".".join(map(str, first["loc"])) or "the line"
                raise RecordError(
                    f"{where}: {field}: {first['msg']}", "each line is a conversation of `echo-env synthesize`"
                ) from None
            yield _chat(conversation, where)


def _chat(conversation: Conversation, where: str) -> Chat:
    meta, lines = conversation.meta, conversation.messages
    system = lines[0].content if lines and lines[0].role == "system" else ""
    said = lines[1:] if lines and lines[0].role == "system" else lines
    expected = ["user", "assistant"] * (len(said) // 2)
    if not said or [line.role for line in said] != expected:
        raise RecordError(f"{where}: user and assistant do not take turns, from the user's first to a reply")
    person = str(meta.facets.get("scenario", ""))
    _refuse_measured(where, person, str(meta.facets.get("scenario_hash", "")))
    recorded = meta.source == "recorded"
    rewards = [r for r in meta.rewards if r is not None]
    return Chat(
        id=meta.id,
        origin=where,
        companion=meta.models.get("companion", ""),
        scenario=person,
        language=meta.language,
        system=system,
        messages=tuple(Message(role="user" if x.role == "user" else "companion", text=x.content) for x in said),
        distance=_distance(person),
        success=meta.end == "success" if recorded else None,
        returned=sum(rewards) if recorded and len(rewards) == len(said) // 2 else None,
    )


def _recorded(folder: RunFolder) -> Iterator[Chat]:
    for episode in folder.episodes():
        if episode.outcome is not None and episode.turns:
            yield _of_episode(episode, str(folder.episode_path(episode.header.episode_id)))


def _of_episode(episode: Episode, where: str) -> Chat:
    header, turns = episode.header, episode.turns
    _refuse_measured(where, header.scenario, header.scenario_hash, header.split)
    said = [
        Message(role=role, text=text)
        for turn in turns
        for role, text in (("user", turn.user), ("companion", turn.reply))
    ]
    rewards = [turn.reward for turn in turns if turn.reward is not None]
    score = episode_case(header.policy, episode, get_scorer(), "epm").score
    composite = score.composite if score else None
    return Chat(
        id=f"{header.policy}/{header.episode_id}",
        origin=where,
        companion=header.policy,
        scenario=header.scenario,
        language=header.language,
        system="",
        messages=tuple(said),
        distance=float(np.linalg.norm(header.p0)),
        success=score.success if score and score.scored else None,
        epm_q=composite.epm_q if composite else None,
        returned=sum(rewards) if len(rewards) == len(turns) else None,
    )


def _refuse_measured(where: str, person: str, digest: str, split: str = "") -> None:
    measured = split in MEASURED or person.rpartition("-")[0] == "dev" or person in _held_out()[0]
    if measured or (digest and digest in _held_out()[1]):
        raise ConfigError(
            f"{where}: a conversation with {person or 'somebody'}, who is measured on: the benchmark split is never"
            " trained on, nor are benchmark-zh and dev",
            "record conversations with the train split",
        )


@cache
def _held_out() -> tuple[frozenset[str], frozenset[str]]:
    """Return ids and digests of the hand-written people that are measured on."""
    ids = [name for split in NEVER_TRAINED for name in scenario_ids(split)]
    return frozenset(ids), frozenset(get_scenario(name).digest for name in ids)


@cache
def _distance(person: str) -> float | None:
    """Return norm(P0) of one of our people, None for somebody else's."""
    try:
        return float(np.linalg.norm(get_scenario(person).p0)) if person else None
    except EchoError:
        return None


# ---- rejection sampling --------------------------------------------------------------------------------------------


def best_of(chats: Iterable[Chat], keep: int = 1) -> list[Chat]:
    """Return the best conversations of each person: success first, then EPM-Q, or the return where one has no EPM-Q.

    A conversation that was not judged throughout is no candidate: missing is not zero. Of equals the earlier stays.

    Args:
        chats: Candidates; those of a person are compared with each other only.
        keep: Most conversations of each person.

    Raises:
        ConfigError: None of them was judged.
    """
    people: dict[str, list[Chat]] = defaultdict(list)
    for chat in chats:
        if chat.scenario and chat.success is not None and (chat.epm_q is not None or chat.returned is not None):
            people[chat.scenario].append(chat)
    if not people:
        raise ConfigError("best-of-N needs judged conversations, and there is none", "record some with a judge")
    return [chat for own in people.values() for chat in _ranked(own)[:keep]]


def _ranked(own: list[Chat]) -> list[Chat]:
    by_index = all(chat.epm_q is not None for chat in own)

    def worth(chat: Chat) -> tuple[bool, float]:
        value = chat.epm_q if by_index else chat.returned
        return bool(chat.success), -np.inf if value is None else value

    return sorted(own, key=worth, reverse=True)


# ---- mixing --------------------------------------------------------------------------------------------------------


def mix(sources: Sequence[Source], count: int | None, seed: int) -> list[Chat]:
    """Draw conversations from sources by their shares: exact counts, none twice, the same for the same seed.

    Args:
        sources: What there is.
        count: Conversations to draw; None: as many as the shares allow without repeating one.
        seed: Seed of the draw.

    Raises:
        ConfigError: A source holds fewer conversations than its share of `count`, or one that another holds too.
    """
    pools = {str(number): _pool(source) for number, source in enumerate(sources)}
    shares = {str(number): Fraction(str(source.share)) for number, source in enumerate(sources)}
    total = sum(shares.values())
    if count is None:
        count = min(int(len(pools[n]) * total / share) for n, share in shares.items())
        while any(number > len(pools[n]) for n, number in counts_of(shares, count).items()):
            count -= 1
    drawn: list[Chat] = []
    for n, number in counts_of(shares, count).items():
        pool, path = pools[n], sources[int(n)].path
        if number > len(pool):
            raise ConfigError(f"{path} holds {len(pool)} conversations, its share is {number}", "lower count or share")
        drawn += random.Random(f"{seed}/mix/{n}").sample(pool, number)
    return drawn


def _pool(source: Source) -> list[Chat]:
    chats = sorted(read(source.path), key=lambda chat: chat.id)  # files may be written in the order of completion
    if source.policies:
        chats = [chat for chat in chats if _named(chat.companion, source.policies)]
        if not chats:
            raise ConfigError(f"{source.path} holds no conversation of {', '.join(source.policies)}")
    return best_of(chats, source.best) if source.best else chats


def _named(companion: str, names: Sequence[str]) -> bool:
    return any(companion == name or companion.startswith((f"{name}-", f"{name}+")) for name in names)


def windows(chats: Iterable[Chat], exchanges: int) -> list[Chat]:
    """Cut conversations into pieces of so many exchanges, the last one as it comes; 0 leaves them whole."""
    if not exchanges:
        return list(chats)
    return [
        replace(chat, id=f"{chat.id}#{start}", messages=chat.messages[2 * start : 2 * (start + exchanges)])
        for chat in chats
        for start in range(0, chat.turns, exchanges)
    ]


def companions(chats: Iterable[Chat]) -> dict[str, int]:
    """Return how many conversations each companion has, the most first."""
    found: dict[str, int] = defaultdict(int)
    for chat in chats:
        found[chat.companion] += 1
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def held_out(chats: Sequence[Chat], share: float) -> tuple[list[Chat], list[Chat]]:
    """Split conversations into those to train on and those to measure the loss on: the last by a digest of their ids.

    A person may stand on both sides, a conversation never does.

    Args:
        chats: All of them.
        share: Share to hold out, in [0, 1), rounded to whole conversations; at least one is left to train on.
    """
    by_digest = sorted(chats, key=lambda chat: blake2b(chat.id.encode(), digest_size=8).digest())
    number = min(round(share * len(chats)), len(chats) - 1)
    measured = {chat.id for chat in by_digest[:number]}
    return [c for c in chats if c.id not in measured], [c for c in chats if c.id in measured]


# ---- order ---------------------------------------------------------------------------------------------------------


def difficulty(chats: Sequence[Chat]) -> NDArray[np.float64]:
    """Return how long and emotional each conversation is among the others, 0..1 (our reading of Echo-N1 3.1).

    Half of it is the rank of its number of turns. The other half is the mean rank of what there is of two signs: the
    person's deficit norm(P0), and the feelings that the person puts into words, per message.
    """
    turns = _ranks([chat.turns for chat in chats])
    signs = np.array([_ranks([chat.distance for chat in chats]), _ranks([_voiced(chat) for chat in chats])])
    there = ~np.isnan(signs)
    emotion: NDArray[np.float64] = np.where(there, signs, 0.0).sum(0) / np.maximum(there.sum(0), 1)
    return 0.5 * turns + 0.5 * emotion


def _voiced(chat: Chat) -> float:
    own = [message.text for message in chat.messages if message.role == "user"]
    return sum(len(voiced_feelings(text, chat.language)) for text in own) / len(own)


def _ranks(values: Sequence[float | None]) -> NDArray[np.float64]:
    """Return ranks scaled to 0..1, equals sharing their middle rank; NaN for None."""
    known = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
    present = np.sort(known[~np.isnan(known)])
    low, high = np.searchsorted(present, known, "left"), np.searchsorted(present, known, "right")
    ranks = (low + high - 1) / 2 / max(len(present) - 1, 1)
    return np.where(np.isnan(known), np.nan, ranks)


def ordered(hardness: NDArray[np.float64], order: Order, stages: int, seed: int, epoch: int) -> list[int]:
    """Return the places of conversations in the order in which an epoch meets them.

    - `shuffle`: anyhow.
    - `staged`: easy ones first, in stages of equal size, anyhow within a stage. Every epoch begins with the easy ones.

    Args:
        hardness: `difficulty`; its length is what counts under `shuffle`.
        order: Which.
        stages: Stages of an epoch, at least 1.
        seed: Seed of the training.
        epoch: From 0; each is shuffled anew.
    """
    rnd = random.Random(f"{seed}/order/{epoch}")
    if order == "shuffle":
        places = list(range(len(hardness)))
        rnd.shuffle(places)
        return places
    met: list[int] = []
    for stage in np.array_split(np.argsort(hardness, kind="stable"), stages):
        places = stage.tolist()
        rnd.shuffle(places)
        met += places
    return met


# ---- ids and masks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation as ids, True where it is trained on."""

    id: str
    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    cut: bool
    """Whether the end of the conversation did not fit."""


Encode = Callable[[Sequence[Message]], tuple[list[int], list[bool]]]
"""`ChatFormat.conversation`."""


def example(chat: Chat, encode: Encode, longest: int, *, everything: bool = False) -> Example | None:
    """Return a conversation as ids and mask, cut after the last whole turn that fits; None where not one fits.

    Args:
        chat: The conversation.
        encode: Of the model's chat format, under this conversation's system prompt.
        longest: Most ids.
        everything: Train on every token but the first, the user's too.
    """
    ids, mask = encode(chat.messages)
    ends = [at for at, (own, next_own) in enumerate(zip(mask, [*mask[1:], False], strict=True), 1) if own > next_own]
    fitting = [end for end in ends if end <= longest]
    if not fitting:
        return None
    # ids only grow with a conversation: its first turns alone are a beginning of the whole
    ids, mask = ids[: fitting[-1]], mask[: fitting[-1]]
    if everything:
        mask = [False] + [True] * (len(ids) - 1)
    return Example(chat.id, tuple(ids), tuple(mask), len(fitting) < len(ends))


def texts(chats: Iterable[Chat]) -> Iterator[str]:
    """Yield every message, to train a tokenizer on."""
    return (message.text for chat in chats for message in chat.messages)


def people(chats: Iterable[Chat]) -> dict[str, str]:
    """Return the digest of each person who is ours, as the scenario stands today."""
    names = sorted({chat.scenario for chat in chats})
    return {name: get_scenario(name).digest for name in names if _distance(name) is not None}
