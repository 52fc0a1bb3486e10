"""The agent file's executors: OpenRLHF's own loops, with our conversations in them. Needs OpenRLHF.

    AgentExecutor = executor_of(Path(__file__).with_name("agent.json"))     # all that an agent file holds

`mode=multiturn` runs in `MultiTurnAgentExecutor`, `mode=pseudo` in `SingleTurnAgentExecutor`. A reward file
(`reward_func`) would see one sample at a time: it could neither leave out one that its judge failed nor say whether a
group has spread. So both modes are agent files.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal, cast

from openrlhf.utils.agent import AgentExecutorBase, AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor

from echo_env.agents.scoring import score_reply
from echo_env.agents.service.labels import prompt_of
from echo_env.trainers.chat import ChatFormat
from echo_env.trainers.openrlhf.rows import Spec
from echo_env.trainers.openrlhf.talks import (
    AgentSettings,
    CappedEngine,
    Played,
    Siblings,
    Verbatim,
    Written,
    check_ids,
    text_of,
)
from echo_env.trainers.outcomes import Rollout, Task
from echo_env.trainers.replies import Replies, messages_of, turn_of
from echo_env.trainers.rollouts import Conversations
from echo_env.trainers.sampler import Sample, Sampler

_ELSEWHERE = cast("Sampler", None)
"""What samples is OpenRLHF's engine."""


class _Person(AgentInstanceBase):  # type: ignore[misc]  # OpenRLHF has no types
    """One conversation, as `MultiTurnAgentExecutor` steps through it."""

    def __init__(self, play: Conversations, task: Task, engine: CappedEngine) -> None:
        self.play, self.engine, self.talk = play, engine, play.start(0, task)

    async def reset(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Let the person open the conversation."""
        await self.play.open(self.talk)
        prompt = [] if self.talk.over else self.play.prompt(self.talk)
        if self.talk.over:  # OpenRLHF wants tokens all the same: the least that there is, left out later
            return {"observation": Written("", self.play.chat.end)}
        self.engine.room = self.play.room(self.talk)
        return {"observation": Written("", prompt)}

    async def step(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Take the reply that was sampled, and answer it."""
        between: list[int] = []
        if not self.talk.over and not self.engine.ids:  # a request that was aborted
            self.talk.failure = "the engine returned no token"
        if not self.talk.over:
            await self.play.advance(self.talk, _sample(self.engine, self.play.chat))
        if not self.talk.over:
            before = len(self.engine.prompt) + len(self.engine.ids)
            prompt = self.play.prompt(self.talk)
            if not self.talk.over:
                between, self.engine.room = prompt[before:], self.play.room(self.talk)
        return {"rewards": _PENDING, "environment_feedback": Written("", between), "done": self.talk.over}


class _Pending:
    """A reward that is known once the siblings are in; OpenRLHF adds up `.item()` of each turn."""

    def item(self) -> float:
        return 0.0


_PENDING = _Pending()


def _sample(engine: CappedEngine, chat: ChatFormat) -> Sample:
    ids = engine.ids
    return Sample(engine.prompt, ids, engine.logprobs, "end" if ids and ids[-1] in chat.stops else "length")


class _Desk:
    """What the conversations of one engine share.

    Args:
        settings: Of the run.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self.settings, self.siblings = settings, Siblings(settings.siblings)
        self._play: Conversations | Replies | None = None

    def play(self, tokenizer: Any) -> Conversations | Replies:
        """Return what plays, made with the first tokenizer that OpenRLHF brings."""
        if self._play is None:
            s = self.settings
            chat = ChatFormat(tokenizer, stops=frozenset(s.stops), system=s.system)
            if s.mode == "multiturn":
                self._play = Conversations(
                    s.world, chat, _ELSEWHERE, limits=s.limits, score=s.score, overlong=s.overlong
                )
            else:
                score: Literal["verdict", "reward"] = "reward" if s.score == "reward" else "verdict"
                self._play = Replies(s.world, chat, _ELSEWHERE, limits=s.limits, score=score, overlong=s.overlong)
        return self._play

    def params(self, shared: Any) -> Any:
        """Return a conversation's own sampling parameters, with the cap that the opening must leave room for."""
        own = copy.deepcopy(shared)
        own.max_tokens = self.settings.limits.reply_tokens
        return own


class Dialogue(MultiTurnAgentExecutor):  # type: ignore[misc]
    """Whole conversations.

    Args:
        settings: Of the run.
    """

    def __init__(self, settings: AgentSettings) -> None:
        super().__init__(_Person)
        self.desk = _Desk(settings)

    async def execute(
        self, prompt: str, label: Any, sampling_params: Any, max_length: int, hf_tokenizer: Any, llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Play one conversation; returns when its siblings have been played, too."""
        play = cast("Conversations", self.desk.play(hf_tokenizer))
        spec = Spec.model_validate_json(label)
        task = Task(group=spec.group, seed=spec.seed, scenario=spec.known())
        person = _Person(play, task, CappedEngine(llm_engine, self.desk.settings.stops))

        async def sample() -> Played:
            loop = MultiTurnAgentExecutor(_Person)
            loop.agent_instance_cls = lambda: person
            response = await loop.execute(
                prompt, label, self.desk.params(sampling_params), max_length, Verbatim(hf_tokenizer), person.engine,
                images,
            )  # fmt: skip
            played = Played(response, play.rollout(person.talk, 0))
            check_ids(played)
            return played

        return await self.desk.siblings.join((prompt, text_of(label)), sample())


class OneReply(SingleTurnAgentExecutor):  # type: ignore[misc]
    """Single replies to fixed histories.

    Args:
        settings: Of the run.
    """

    def __init__(self, settings: AgentSettings) -> None:
        super().__init__()
        self.desk = _Desk(settings)

    async def execute(
        self, prompt: str, label: Any, sampling_params: Any, max_length: int, hf_tokenizer: Any, llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Sample and score one reply; returns when its siblings have been, too."""
        play, limits = cast("Replies", self.desk.play(hf_tokenizer)), self.desk.settings.limits
        asked, engine = prompt_of(label).scorable(), CappedEngine(llm_engine, self.desk.settings.stops)
        task = Task(group=prompt, seed=0, prompt=asked)

        async def sample() -> Played:
            limit = limits.context - limits.reply_tokens
            ids = play.chat.fitting(messages_of(asked), limit)
            fits = len(ids) <= limit
            engine.room = limits.reply_tokens if fits else 1
            response = await super(OneReply, self).execute(
                Written(prompt, ids if fits else play.chat.end), label, self.desk.params(sampling_params), max_length,
                Verbatim(hf_tokenizer), engine, images,
            )  # fmt: skip
            response["prompt"] = prompt
            if not fits or not engine.ids:
                why = "the engine returned no token" if fits else "the prompt leaves no room for a reply (context)"
                return Played(response, Rollout(task, None, failure=why))
            text = play.chat.text(engine.ids)
            turn = turn_of(asked, text, await score_reply(play.world, asked, text))
            played = Played(response, play.rollout(task, turn, _sample(engine, play.chat), 0))
            check_ids(played)
            return played

        return await self.desk.siblings.join((prompt, text_of(label)), sample())


def executor_of(path: Path) -> type[AgentExecutorBase]:
    """Return the class that OpenRLHF makes one of in each engine.

    Args:
        path: Of `agent.json`.
    """
    settings = AgentSettings.model_validate_json(path.read_text(encoding="utf-8"))
    base: type[Any] = Dialogue if settings.mode == "multiturn" else OneReply

    class AgentExecutor(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(settings)

    return AgentExecutor
