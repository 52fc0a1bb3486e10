"""The reward service: the environment's recipes over HTTP, for trainers that live in another process.

`/score` answers with rewards, parts, verdicts and evidence, null where a reply could not be judged. `/get_reward`
speaks OpenRLHF's wire format (0.11.2: `openrlhf/utils/agent.py`, `cli/serve_rm.py`), which has no null: there a failed
judgement fails the request, so that it is asked again and never taken for a zero (docs/service.md). Both score by
`scoring.score_replies`, as whoever scores in process does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, cast

from pydantic import Field, SecretStr

from echo_env import registry
from echo_env.agents.scoring import ScorablePrompt, Scored, score_replies
from echo_env.agents.service.labels import ENDS, prompt_of, reply_in
from echo_env.agents.service.metrics import ServiceMetrics
from echo_env.agents.service.wire import RewardAnswer, RewardRequest, ScoreAnswer, ScoreRequest
from echo_env.build import WorldConfig, build_judge, recipe_of
from echo_env.errors import ConfigError, redact
from echo_env.faults import fault_of
from echo_env.rewards import JudgedRecipe
from echo_env.roles import Cast
from echo_env.session import visible
from echo_env.types import Record


class ServiceConfig(Record):
    """What a service scores, where it listens, and how much it takes."""

    world: WorldConfig = WorldConfig()
    """Recipe and its options; judge, backend and scorer of a recipe that is made of EPM."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8040
    """0 for any that is free."""
    token: SecretStr | None = None
    """Needed for any address but loopback, honoured everywhere."""
    max_batch: Annotated[int, Field(ge=1)] = 64
    """Replies in one request."""
    max_body: Annotated[int, Field(ge=1)] = 2_000_000
    """Bytes of one request."""
    max_text: Annotated[int, Field(ge=1)] = 40_000
    """Characters of one message or reply."""
    at_once: Annotated[int, Field(ge=1)] = 8
    """Requests that are scored at the same time."""
    queue: Annotated[int, Field(ge=0)] = 64
    """Requests that may wait beside them; the next is told to come back."""
    timeout: Annotated[float, Field(gt=0)] = 150.0
    """Seconds for one request, under the 180 after which OpenRLHF's client hangs up."""
    grace: Annotated[int, Field(ge=0)] = 30
    """Seconds that requests under way get when the service is told to stop."""
    connections: Annotated[int, Field(ge=1)] = 256
    """Open connections."""
    ends: tuple[str, ...] = ENDS
    """What the policy's model may end its turn with; cut from `/get_reward`'s queries."""
    log_parts: tuple[str, ...] = ()
    """Parts of the reward for OpenRLHF's `extra_logs`, which must be the same for every sample."""


class Fault(NamedTuple):
    """What is wrong with a request, and where."""

    message: str
    field: str
    at: int | None = None
    """Number of the item, from 0."""
    where: str = ""
    """Place in the item, with dots."""

    @property
    def shown(self) -> dict[str, object]:
        """The fault in FastAPI's form."""
        at = () if self.at is None else (self.at,)
        return {"loc": ["body", self.field, *at, *filter(None, self.where.split("."))], "msg": self.message}


class Unusable(Exception):
    """A request that gets no rewards."""

    def __init__(self, code: int, faults: Iterable[Fault]) -> None:
        super().__init__()
        self.code, self.faults = code, tuple(faults)


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a prompt cannot be scored: a mistake of who asks, not a judge's failure."""

    message: str


class Bench:
    """Scores on a loop in a thread of its own, so many requests at once; the service stays awake meanwhile.

    What was begun is seen out, even where nobody waits for it any more: a judge that is a language model keeps its
    answers, so that who asks again finds them. Until then it holds its place, so that the work is bounded.
    """

    def __init__(self, world: WorldConfig, at_once: int) -> None:
        self.world = world
        self._places = asyncio.Semaphore(at_once)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="echo-env-scoring", daemon=True).start()

    async def score(self, replies: Sequence[tuple[ScorablePrompt, str]]) -> list[Scored | Misfit]:
        """Score replies, in their order."""
        await self._places.acquire()
        work = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._score(replies), self._loop))
        work.add_done_callback(lambda _: self._places.release())
        return await asyncio.shield(work)

    async def _score(self, replies: Sequence[tuple[ScorablePrompt, str]]) -> list[Scored | Misfit]:
        groups: dict[ScorablePrompt, list[int]] = {}
        for k, (prompt, _) in enumerate(replies):
            groups.setdefault(prompt, []).append(k)
        found = await asyncio.gather(*(self._group([replies[k] for k in group]) for group in groups.values()))
        results = dict(zip((k for group in groups.values() for k in group), (r for g in found for r in g), strict=True))
        return [results[k] for k in range(len(replies))]

    async def _group(self, replies: list[tuple[ScorablePrompt, str]]) -> Sequence[Scored | Misfit]:
        try:
            return await score_replies(self.world, replies)
        except ConfigError as e:
            return [Misfit(redact(str(e))[:500])] * len(replies)
        except Exception as e:  # whatever a plugged-in part did, the batch's other replies have their rewards
            return [Scored(reward=None, failure=fault_of("service", e))] * len(replies)


class Service:
    """The two scoring routes, apart from HTTP."""

    def __init__(self, config: ServiceConfig) -> None:
        self.config, self.metrics = config, ServiceMetrics()
        self.recipe = recipe_of(config.world).id
        self.judges = judge_ids(config.world)
        self._bench = Bench(config.world, config.at_once)

    async def score(self, request: ScoreRequest) -> ScoreAnswer:
        """Score a batch.

        Raises:
            Unusable: An item cannot be scored as it stands.
        """
        self._fit("items", len(request.items))
        for k, item in enumerate(request.items):
            self._short("items", k, (*item.texts, ("reply", item.reply), ("raw", item.raw or "")))
            if item.raw is not None and visible(item.raw) != visible(item.reply):
                raise Unusable(422, [Fault("without its thinking this is not the reply", "items", k, "raw")])
        scored = await self._scored("items", [(item.scorable(), item.said) for item in request.items])
        return ScoreAnswer(recipe=self.recipe, results=tuple(scored))

    async def get_reward(self, request: RewardRequest) -> RewardAnswer:
        """Score what OpenRLHF sends.

        Raises:
            Unusable: Something does not fit (422), or a reply could not be judged (503).
        """
        count = len(request.query)
        self._fit("query", count)
        if not len(request.prompts) == len(request.labels) == count:
            raise Unusable(422, [Fault(f"as many labels and prompts are needed as queries, {count}", "labels")])
        rows = enumerate(zip(request.query, request.prompts, request.labels, strict=True))
        scored = await self._scored("labels", [self._row(k, *row) for k, row in rows])
        rewards = [s.reward for s in scored if s.reward is not None]
        if len(rewards) < count:
            lost = ((k, s.failure) for k, s in enumerate(scored) if s.reward is None)
            raise Unusable(503, [Fault(f"no reward: {failure}", "query", k) for k, failure in lost])
        logs = {part: _logged(part, scored) for part in self.config.log_parts}
        return RewardAnswer(rewards=tuple(rewards), scores=tuple(rewards), extra_logs=logs)

    def _row(self, k: int, query: str, prompt: str, label: str) -> tuple[ScorablePrompt, str]:
        field = "labels"
        try:
            read, field = prompt_of(label), "query"
            reply = reply_in(query, prompt, self.config.ends)
        except ConfigError as e:
            raise Unusable(422, [Fault(str(e), field, k)]) from None
        self._short("labels", k, read.texts)
        self._short("query", k, [("", reply)])
        return read.scorable(), reply

    async def _scored(self, field: str, replies: Sequence[tuple[ScorablePrompt, str]]) -> list[Scored]:
        results = await self._bench.score(replies)
        scored = [r for r in results if isinstance(r, Scored)]
        self.metrics.scored(scored)
        if len(scored) < len(replies):
            raise Unusable(422, [Fault(r.message, field, k) for k, r in enumerate(results) if isinstance(r, Misfit)])
        return scored

    def _fit(self, field: str, count: int) -> None:
        most = self.config.max_batch
        if count > most:
            raise Unusable(413, [Fault(f"{count} replies in one request, at most {most} are taken", field)])

    def _short(self, field: str, k: int, texts: Iterable[tuple[str, str]]) -> None:
        most = self.config.max_text
        for where, text in texts:
            if len(text) > most:
                raise Unusable(422, [Fault(f"{len(text)} characters, at most {most} are taken", field, k, where)])


def _logged(part: str, scored: Sequence[Scored]) -> tuple[float, ...]:
    lacking = [
        Fault(f"its reward has no part '{part}' to log", "query", k)
        for k, s in enumerate(scored)
        if part not in s.parts
    ]
    if lacking:
        raise Unusable(422, lacking)
    return tuple(s.parts[part] for s in scored)


def judge_ids(world: WorldConfig) -> tuple[str, ...]:
    """Return the ids of the judges that rewards come from.

    Raises:
        ConfigError: A name is unknown.
    """
    recipe = recipe_of(world)
    if isinstance(recipe, JudgedRecipe):
        return tuple(sorted({part.id for part in vars(recipe).values() if hasattr(part, "verdict")}))
    if world.judge is not None:
        return (build_judge(world.judge).id,)
    return (cast("Callable[[int], Cast]", registry.resolve("backend", world.backend))(0).judge.id,)
