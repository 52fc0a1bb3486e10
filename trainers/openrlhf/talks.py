"""What the agent file plays: our conversations, inside OpenRLHF's loop.

Free of OpenRLHF and vLLM, which are another machine's. `agent.py` puts it under their executors.

OpenRLHF 0.11.2's loops give away or lose a few things; here is what is done about each.

- One `sampling_params` serves all siblings and is written to: each conversation gets a copy.
- A reply's cap is ignored after the first turn: `CappedEngine` sets it at each call, with the ids that end a reply, and
  lets a reply be empty as it may be under engine=local.
- Text is tokenised again: what we say carries its ids along (`Written`), and `Verbatim` hands those out. So an end
  token stands exactly once after each reply, whether the reply was cut or closed itself.
- Nobody is told why a reply stopped: the ids tell.
- The overlong penalty counts the user's tokens: ours is in the reward already, reply by reply, on the policy's.
- A reward of None ends the run: none is ever sent (`settle`).
- Logged keys must be the same in all samples: `LOGS`.
- An episode's end is taken from its last reply's: `truncated` is ours.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from echo_env.build import WorldConfig
from echo_env.errors import EchoError
from echo_env.trainers.advantages import trajectory_rewards
from echo_env.trainers.filters import has_spread, scored
from echo_env.trainers.outcomes import Limits, Overlong, Rollout, ScoreBy
from echo_env.trainers.trajectory import Retokenised, reward_table
from echo_env.types import Record

LOG = logging.getLogger(__name__)
LOGS = ("unscored", "verdict", "terminated", "success", "turns", "policy_tokens", "cut_replies")
"""What each sample logs; OpenRLHF averages over samples. `unscored` is 1 for a sample that nobody could score."""
SPREAD, NO_SPREAD = 0.5, 0.0
"""Scores that OpenRLHF's filter, low < mean < high with 0 and 1, keeps and drops: `filters.has_spread` decides."""


class AgentSettings(Record):
    """`agent.json`, beside the agent file."""

    mode: Literal["multiturn", "pseudo"]
    world: WorldConfig
    system: str | None
    stops: tuple[int, ...]
    """Ids that end a reply."""
    limits: Limits
    overlong: Overlong | None
    score: ScoreBy
    siblings: int
    """Samples of each prompt, in training and in evaluation."""


class Written(str):
    """A text whose token ids are known."""

    ids: list[int]

    def __new__(cls, text: str, ids: Sequence[int]) -> Written:
        """Take the text and its ids."""
        new = super().__new__(cls, text)
        new.ids = list(ids)
        return new


class Verbatim:
    """A tokenizer that gives what is `Written` the ids it was written with.

    Args:
        tokenizer: For everything else.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str, **options: Any) -> Any:
        """Tokenise, as Hugging Face tokenizers are called."""
        if not isinstance(text, Written):
            return self._tokenizer(text, **options)
        import torch

        return {"input_ids": torch.tensor([text.ids], dtype=torch.long)}

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        """Return the text of ids."""
        return str(self._tokenizer.decode(ids, **options))


class CappedEngine:
    """An engine that keeps to a reply's cap, and remembers what it sampled.

    Args:
        engine: OpenRLHF's, with a coroutine `generate`.
        stops: Ids that end a reply.
    """

    def __init__(self, engine: Any, stops: Sequence[int]) -> None:
        self._engine, self._stops = engine, sorted(stops)
        self.room = 1
        """Most tokens of the next reply."""
        self.prompt: list[int] = []
        self.output: Any = None

    async def generate(self, prompt_token_ids: list[int], sampling_params: Any, multi_modal_data: Any = None) -> Any:
        """Sample a reply, and return what the engine does."""
        params = copy.deepcopy(sampling_params)
        params.max_tokens = self.room if params.max_tokens is None else min(params.max_tokens, self.room)
        params.min_tokens, params.stop_token_ids = 0, self._stops
        request = await self._engine.generate(prompt_token_ids, params, multi_modal_data=multi_modal_data)
        self.prompt, self.output = list(prompt_token_ids), request.outputs[0]
        return request

    @property
    def ids(self) -> list[int]:
        """What was sampled last."""
        return list(self.output.token_ids)

    @property
    def logprobs(self) -> list[float]:
        """Log-probabilities of `ids`; zeros where the engine was not asked for them (nothing here reads them then)."""
        if self.output.logprobs is None:
            return [0.0] * len(self.ids)
        return [float(at[token].logprob) for token, at in zip(self.ids, self.output.logprobs, strict=True)]


@dataclass(slots=True)
class Played:
    """One sample: what OpenRLHF takes, and what we know of it."""

    response: dict[str, Any]
    rollout: Rollout

    @property
    def reward(self) -> float | None:
        """Sum of the shaped rewards; None where there is none (`advantages.turn_returns` says when)."""
        if self.rollout.trajectory is None:
            return None
        reward = float(trajectory_rewards(reward_table([self.rollout.trajectory]))[0])
        return None if math.isnan(reward) else reward


def check_ids(played: Played) -> None:
    """Check that OpenRLHF's record holds the ids and spans of ours.

    Raises:
        Retokenised: It does not.
    """
    if played.rollout.trajectory is None:
        return
    ours = played.rollout.trajectory.sequences[-1]
    spans = [(reply.start, reply.end) for reply in ours.replies]
    theirs = [(int(a), int(b)) for a, b in played.response["action_ranges"]]
    if tuple(played.response["observation_tokens"][: len(ours.ids)]) != ours.ids or spans != theirs:
        raise Retokenised("OpenRLHF's record of a conversation is not ours: its ids or spans differ")


def settle(group: Sequence[Played], usual: float = 0.0) -> None:
    """Give the siblings of one prompt their rewards, scores and logs, once all are in.

    A sample that nobody could score (a judge or a person failed) cannot be left out of OpenRLHF's batch, nor may its
    reward be None or NaN. It gets the mean of its scored siblings and one trainable token, its last: with a baseline
    over the group that token's advantage is 0, and so is its share in the policy's gradient. (With no token at all
    OpenRLHF logs NaN.) What remains: one token in the mean over tokens, and in a KL or entropy term; and for the k
    scored siblings of n, advantages that are larger under `group_norm` by sqrt((n - 1) / (k - 1)) and smaller under
    `rloo`, where they are n / (n - 1) and not k / (k - 1) times the distance from the mean.

    Args:
        group: All siblings.
        usual: Stands in where no sibling has a reward.
    """
    rewards = [p.reward for p in group]
    verdicts = [p.rollout.trajectory.verdict if p.rollout.trajectory else None for p in group]
    scores = [p.rollout.trajectory.score if p.rollout.trajectory else None for p in group]
    mean, typical = fmean(scored(rewards) or [usual]), fmean(scored(verdicts) or [0.0])
    for played, reward, verdict in zip(group, rewards, verdicts, strict=True):
        response, trajectory = played.response, played.rollout.trajectory
        if reward is None:
            end = max((b for _, b in response["action_ranges"]), default=len(response["observation_tokens"]))
            response["action_ranges"] = [(end - 1, end)]
            LOG.warning("a sample is left out: %s", played.rollout.failure or "its judge failed")
        replies = list(trajectory.replies()) if trajectory else []
        outcome = played.rollout.outcome
        response["reward"] = mean if reward is None else reward
        response["scores"] = SPREAD if has_spread(scores) else NO_SPREAD
        response["truncated"] = trajectory is not None and trajectory.ended == "truncated"
        values = (
            reward is None,
            typical if verdict is None else verdict,
            trajectory is not None and trajectory.ended == "terminated",
            outcome is not None and outcome.end == "success",
            len(replies),
            trajectory.policy_tokens if trajectory else 0,
            sum(reply.stop == "length" for reply in replies),
        )
        response["extra_logs"] = dict(zip(LOGS, map(float, values), strict=True))


@dataclass(slots=True)
class _Group:
    """Siblings that are in, and where the others wait."""

    played: list[Played] = field(default_factory=list)
    settled: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Siblings:
    """Holds the samples of a prompt until all are there. No sampling waits for that, only the group's return.

    Args:
        count: Samples of each prompt.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._groups: dict[tuple[str, str], _Group] = {}
        self._usual = 0.0
        self._seen = 0

    async def join(self, key: tuple[str, str], sample: Awaitable[Played]) -> dict[str, Any]:
        """Await one sample, then its siblings, and return what OpenRLHF takes.

        Args:
            key: The prompt and its label.
            sample: The sample under way.
        """
        group = self._groups.setdefault(key, _Group())
        try:
            played = await sample
        except BaseException as e:  # the engine died, or there is a bug: nobody may wait for this one
            if self._groups.get(key) is group:
                del self._groups[key]
            if not group.settled.done():
                group.settled.set_exception(EchoError(f"a sibling's sample broke off: {type(e).__name__}: {e}"))
                group.settled.exception()  # marked as seen, should it have been the only one
            raise
        group.played.append(played)
        if len(group.played) == self.count:
            del self._groups[key]
            settle(group.played, self._usual)
            self._remember(group.played)
            group.settled.set_result(None)
        await asyncio.shield(group.settled)
        return played.response

    def _remember(self, group: Sequence[Played]) -> None:
        """Keep the mean of all rewards so far, for a group in which nobody has one."""
        for reward in scored([p.reward for p in group]):
            self._seen += 1
            self._usual += (reward - self._usual) / self._seen


def text_of(label: object) -> str:
    """Return a label as the key of a group: OpenRLHF hands it on as it stands in the data."""
    return label if isinstance(label, str) else repr(label)
