"""Prompts of RL on single replies: points in conversations, each with a reply to beat (Echo-N1 section 2.4).

Empathetic prompts are points in conversations of reference policies with people of the train split; chit-chat prompts,
with those of the split `chitchat`. `prompts.py` writes them to a file and filters them.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError

from echo_env.agents.service.labels import ExchangeRecord, Label
from echo_env.agents.synthesis.conversations import Conversation, Job
from echo_env.agents.synthesis.recorded import SPLIT, chats, counts_of, jobs
from echo_env.build import build_policy, conversation_seed
from echo_env.errors import ConfigError, RecordError, RoleFailure
from echo_env.recipes import REFERENCE
from echo_env.roles import Observation, Policy
from echo_env.session import visible
from echo_env.types import CHITCHAT, Message, Record, Text, storable

R = TypeVar("R", bound=Record)
Tell = Callable[[str, int, int], None]
"""Told what is done, how many of how many."""

MIX: Mapping[str, float] = {"adviser": 3, "template": 2, "lecturer": 2, "skilled": 2, "parrot": 1}
"""Whose conversations prompts are taken from: good and bad ones, since a policy in training has been both."""


class RlPrompt(Label):
    """One line of a prompt file: a label (`service.labels`) that knows where it comes from."""

    id: Annotated[str, Field(min_length=1)]
    """Conversation and turn; unique in its file, and the key of the group that is sampled from it."""
    policy: Text = ""
    """Who gave the replies in the history."""

    @property
    def chitchat(self) -> bool:
        """Whether it gets the humanlike reward alone."""
        return CHITCHAT in (self.domain, (self.scenario or "").rpartition("-")[0])

    @property
    def observation(self) -> Observation:
        """What a policy sees."""
        said = [m for e in self.history for m in (("user", e.user), ("companion", e.reply))]
        messages = (Message.model_validate({"role": role, "text": text}) for role, text in [*said, ("user", self.user)])
        return Observation(tuple(messages), self.language)


class Draw(Record):
    """Which prompts."""

    count: Annotated[int, Field(ge=1)] = 512
    """Prompts, before any filter."""
    chitchat: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Share of chit-chat."""
    mix: dict[str, Annotated[float, Field(ge=0)]] | None = None
    """Share of each policy that plays; None is `MIX`."""
    split: str = SPLIT
    """Of the people in empathetic prompts; only "train"."""
    points: Annotated[int, Field(ge=1)] = 2
    """Prompts taken from a conversation, where it has so many."""
    max_turns: Annotated[int, Field(ge=1)] = 16
    """Turns after which a conversation is cut off: the latest point."""
    seed: int = 0
    """Of everything drawn."""
    reference: str = REFERENCE
    """Policy whose reply is to be beaten."""


def default_prompts(
    count: int = 256, seed: int = 0, chitchat: float = 0.25, tell: Tell = lambda what, done, total: None
) -> list[RlPrompt]:
    """Return prompts without any file, unfiltered: a few seconds for some hundreds.

    Args:
        count: How many.
        seed: Seed of everything drawn.
        chitchat: Share of chit-chat; 0 for a recipe that is made of EPM.
        tell: Told as conversations end.
    """
    return asyncio.run(draw(Draw(count=count, seed=seed, chitchat=chitchat), tell))


def load_prompts(path: Path) -> list[RlPrompt]:
    """Read a prompt file.

    Raises:
        ConfigError: It cannot be read, holds no prompt, one twice, or one of people who are measured on; the message
            names file and line.
    """
    prompts, seen = read_lines(path, RlPrompt), dict[str, int]()
    for number, prompt in enumerate(prompts, start=1):
        where = f"{path}, line {number}"
        if prompt.scenario and prompt.scenario.rpartition("-")[0] not in (SPLIT, CHITCHAT):
            raise ConfigError(
                f"{where}: scenario '{prompt.scenario}' is for measuring, and nothing is trained on it",
                "prompts are of the splits train and chitchat, or of nobody's scenario",
            )
        if seen.setdefault(prompt.id, number) != number:
            raise ConfigError(f"{where}: the id '{prompt.id}' stands in line {seen[prompt.id]} already")
    if not prompts:
        raise ConfigError(f"{path} holds no prompt", "python trainers/prompts.py out=FOLDER  writes them")
    return prompts


async def draw(job: Draw, tell: Tell) -> list[RlPrompt]:
    """Play conversations and return points of them, with references.

    Raises:
        ConfigError: The split is measured on, a policy is unknown, or there are not so many different points.
        RoleFailure: The reference policy gave no reply.
    """
    chatty = round(job.count * job.chitchat)
    mix = {name: Fraction(str(share)) for name, share in (job.mix or MIX).items() if share != 0}
    prompts: list[RlPrompt] = []
    for kind, count in (("empathetic", job.count - chatty), (CHITCHAT, chatty)):
        wanted = {name: number for name, number in counts_of(mix, count).items() if number}
        talks = {name: _meetings(job, kind, name, number) for name, number in wanted.items()}
        total, done = sum(map(len, talks.values())), 0
        for name, meetings in talks.items():
            played = []
            for meeting in meetings:
                with suppress(RoleFailure):  # one that fails is left out; others make up for it
                    played.append(await meeting.play())
                done += 1
                tell(f"{kind} conversations", done, total)
            prompts += _points(job, name, played, wanted[name], {_key(p) for p in prompts})
    reference = build_policy(job.reference)
    prompts = [p if p.chitchat else await _referred(p, reference) for p in prompts]
    random.Random(f"{job.seed}/prompts").shuffle(prompts)
    return prompts


def _meetings(job: Draw, kind: str, policy: str, count: int) -> list[Job]:
    """Return as many conversations of a policy as `count` points take; each policy meets people in its own order."""
    number, seed = math.ceil(count / job.points), conversation_seed(job.seed, policy)
    if kind == CHITCHAT:
        return chats({policy: Fraction(1)}, number, seed, max_turns=job.max_turns)
    return jobs({policy: Fraction(1)}, number, seed, split=job.split, max_turns=job.max_turns)


def _points(job: Draw, policy: str, talks: Sequence[Conversation], count: int, seen: set[object]) -> list[RlPrompt]:
    """Return so many points: `job.points` of each conversation at random, then of what is left over."""
    rnd = random.Random(f"{job.seed}/points/{policy}")
    first: list[RlPrompt] = []
    spare: list[RlPrompt] = []
    for talk in talks:
        points = [_point(policy, talk, turn) for turn in range(talk.meta.turns)]
        rnd.shuffle(points)
        fresh = [p for p in points if _key(p) not in seen]
        seen |= {_key(p) for p in fresh}
        first += fresh[: job.points]
        spare += fresh[job.points :]
    rnd.shuffle(spare)
    found = [*first, *spare][:count]
    if len(found) < count:
        raise ConfigError(
            f"the conversations of '{policy}' hold {len(found)} different points, not {count}",
            "fewer points a conversation, more max_turns, or a smaller count",
        )
    return found


def _point(policy: str, talk: Conversation, turn: int) -> RlPrompt:
    """Return a conversation up to the user's message of a turn, from 0."""
    said = [line.content for line in talk.messages if line.role != "system"]
    return RlPrompt(
        echo_env=1,
        id=f"{talk.meta.id}.{turn}",
        policy=policy,
        scenario=talk.meta.facets["scenario"],
        history=tuple(ExchangeRecord(user=said[k], reply=said[k + 1]) for k in range(0, 2 * turn, 2)),
        user=said[2 * turn],
    )


def _key(prompt: RlPrompt) -> object:
    """Return what makes two prompts one."""
    return prompt.scenario, prompt.history, prompt.user


async def _referred(prompt: RlPrompt, reference: Policy) -> RlPrompt:
    return prompt.model_copy(update={"reference": visible(storable(await reference.respond(prompt.observation)))})


def read_lines(path: Path, kind: type[R], *, torn: bool = False) -> list[R]:
    """Read records, one a line.

    Args:
        path: The file.
        kind: What a line holds.
        torn: Leave out a last line without its end.

    Raises:
        ConfigError: The file cannot be read, or a line is no such record; the message names file and line.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror or e}") from None
    if torn or not lines[-1].strip():
        lines.pop()
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(kind.model_validate_json(line))
        except ValidationError as e:
            first = e.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigError(
                f"{path}, line {number}: no {kind.__name__}: {where + ': ' if where else ''}{first['msg']}"[:400],
                "python trainers/prompts.py out=FOLDER  writes such files",
            ) from None
    return found


def _lines(records: Sequence[Record]) -> str:
    return "".join(r.model_dump_json(exclude_defaults=True) + "\n" for r in records)


def write_lines(path: Path, records: Sequence[Record]) -> None:
    """Write records, one a line: the whole file, or it stays as it was.

    Raises:
        RecordError: The disk does not take it.
    """
    part = path.with_name(path.name + ".part")
    _put(path, part, records, "w")
    part.replace(path)


def append_lines(path: Path, records: Sequence[Record]) -> None:
    """Add records to a file and make sure that they are on the disk.

    Raises:
        RecordError: The disk does not take them.
    """
    _put(path, path, records, "a")


def _put(path: Path, into: Path, records: Sequence[Record], mode: Literal["a", "w"]) -> None:
    try:
        with into.open(mode, encoding="utf-8") as file:
            file.write(_lines(records))
            file.flush()
            os.fsync(file.fileno())
    except OSError as e:
        raise RecordError(f"{path} cannot be written: {e.strerror or e}", "free some space, then resume=true") from None
