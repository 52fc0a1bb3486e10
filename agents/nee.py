"""NEE, the Narrative and Experience Evaluator: a panel of models reviews whole recorded talks (Echo-N1 5.3.4).

Each member first diagnoses what the person needed, from their profile and the talk; only then does it give marks, for
naturalness /30, pacing /40 and narrative /30. The form makes it so: the diagnosis is its first field, and an answer
without one is refused. A member `embedded` is a stand-in without a model (`embedded/reviewer.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from echo_env.agents.embedded.reviewer import EmbeddedReviewer
from echo_env.agents.llm.client import LlmClient, client_of
from echo_env.agents.llm.config import ModelConfig
from echo_env.agents.llm.forms import at_most, fill
from echo_env.agents.llm.prompting import prompt
from echo_env.agents.llm.rolemodels import short_name
from echo_env.agents.people import card, needs
from echo_env.agents.rejudge import scenario_of
from echo_env.agents.reviews import (
    Marks,
    NeeModel,
    NeeResult,
    NeeReview,
    Reviewed,
    Reviewer,
    read_reviews,
    sum_up,
    talk_digest,
    write_reviews,
)
from echo_env.agents.transcript import cut, talk, tokens
from echo_env.cases import episode_case
from echo_env.driving import waits
from echo_env.epm import Scorer
from echo_env.errors import ConfigError
from echo_env.faults import fault_of
from echo_env.metrics import leaderboard
from echo_env.record import RunFolder, find_runs
from echo_env.roles import Exchange, JudgeProfile, profiles_of
from echo_env.scorers import get_scorer
from echo_env.types import CHITCHAT, Episode

MOST = 28_000
"""Characters of a talk that a reviewer is shown; of a longer one, each message as much as leaves room for all."""
LEAST = 120
"""Characters of a message that are always shown."""
DIAGNOSIS = 8
"""Words of a diagnosis at least; of Chinese, characters."""
MAX_TOKENS = 1_500
"""Of a review: a diagnosis in Chinese has a token a character, or more."""
AT_ONCE = 16
"""Reviews under way at the same time."""


class Review(BaseModel):
    """What a member answers. The order is the order of thinking: the diagnosis comes first."""

    diagnosis: Annotated[str, at_most(900), Field(max_length=900, description="What this person needed, and when.")]
    naturalness: Annotated[int, Field(ge=0, le=30)]
    pacing: Annotated[int, Field(ge=0, le=40)]
    narrative: Annotated[int, Field(ge=0, le=30)]
    comment: Annotated[str, at_most(500), Field(max_length=500, description="The best and the worst moment.")]


class LlmReviewer:
    """A language model on the panel.

    Args:
        client: Whom to ask, in the role `nee`.
        model: Which model.
    """

    waits = True

    def __init__(self, client: LlmClient, model: ModelConfig) -> None:
        self.id = f"llm:{short_name(model)}+nee-{prompt('nee', 'en').version}"
        self._client, self._model = client, model

    async def review(self, episode: Episode, profile: JudgeProfile) -> Reviewed:
        """Return a diagnosis and marks.

        Raises:
            LlmFailure: There is no usable answer.
        """
        language, turns = profile.language, episode.turns
        written = prompt("nee", language)
        messages = written.render(
            person=card(profile.persona, profile.situation, language),
            needs=needs(profile.needs, language, axes=False),
            turns=len(turns),
            talk=talk([Exchange(t.user, t.reply) for t in turns], language, max(LEAST, MOST // (2 * len(turns)))),
            closing=cut(episode.outcome.closing, 400) if episode.outcome else "",
        )
        filled = await fill(
            self._client,
            "nee",
            written.key,
            messages,
            Review,
            model=self._model,
            check=_undiagnosed,
            max_tokens=MAX_TOKENS,
        )
        found = filled.form
        marks = Marks(found.naturalness, found.pacing, found.narrative)
        return Reviewed(found.diagnosis, marks, found.comment, filled.usage)


def _undiagnosed(review: Review) -> str:
    if len(tokens(review.diagnosis)) < DIAGNOSIS:
        return "the diagnosis says nothing: write what this person needed, before the marks"
    return ""


def panel_of(names: Sequence[str]) -> tuple[Reviewer, ...]:
    """Return a panel.

    Args:
        names: "embedded"; a model, as "MODEL" or "MODEL@URL"; a models file, which stands for its `panel`, or where
            that is empty for its default model. "llm:" before a name changes nothing.

    Raises:
        ConfigError: There is none, or a models file does not hold what it must.
    """
    panel: list[Reviewer] = []
    for name in names:
        if name == "embedded":
            panel.append(EmbeddedReviewer())
        else:
            client = client_of(name.removeprefix("llm:"))
            panel += [LlmReviewer(client, m) for m in client.models.panel or (client.models.default,)]
    if not panel:
        raise ConfigError("a panel has a member at least", "for example  --models models.yaml  or  --models embedded")
    seen: dict[str, int] = {}
    for member in panel:  # one model with two temperatures, say
        seen[member.id] = seen.get(member.id, 0) + 1
        if seen[member.id] > 1:
            member.id += f"#{seen[member.id]}"
    return tuple(panel)


@dataclass(frozen=True, slots=True)
class Progress:
    """Told after every review."""

    done: int
    total: int
    failed: int


Tell = Callable[[Progress], None]


def review_runs(
    root: Path, panel: Sequence[Reviewer], scorer: str | None = None, tell: Tell = lambda progress: None
) -> NeeResult:
    """Have a panel review every finished episode of the runs in a folder; each run keeps its reviews beside it.

    What the same reviewer has reviewed is not asked for again, unless it failed.

    Args:
        root: A run folder, or a folder of them.
        panel: The reviewers.
        scorer: Scorer behind EPM-Q; None for the recorded one.
        tell: Called after every review.

    Raises:
        RecordError: There is no run, a file cannot be read or written, or a scenario has changed since.
    """
    folders = find_runs(root)
    jobs = [_Job(folder, panel) for folder in folders]
    rules = get_scorer(scorer or _recorded(jobs))
    asyncio.run(_work(jobs, tell))
    return NeeResult(
        panel=tuple(member.id for member in panel),
        scorer=rules.id,
        models=tuple(sorted((_model(job, rules) for job in jobs), key=lambda m: -(m.nee or 0.0))),
    )


class _Job:
    """One run, what is known of it, and what is still to be asked."""

    def __init__(self, folder: RunFolder, panel: Sequence[Reviewer]) -> None:
        self.folder, self.panel = folder, panel
        found = list(folder.episodes())
        self.episodes = [e for e in found if e.outcome is not None and e.turns]
        self.unfinished = len(found) - len(self.episodes)
        self.known = {(r.episode, r.reviewer): r for r in read_reviews(folder.path)}
        self.talks = {e.header.episode_id: talk_digest(e) for e in self.episodes}

    def open(self) -> list[tuple[Episode, Reviewer]]:
        """Return what is to be asked."""
        return [(e, member) for e in self.episodes for member in self.panel if not self._has(e, member)]

    def _has(self, episode: Episode, member: Reviewer) -> bool:
        known = self.known.get((episode.header.episode_id, member.id))
        return known is not None and not known.failure and known.talk == self.talks[known.episode]

    def keep(self, review: NeeReview) -> None:
        """Keep a review, on disk too."""
        self.known[review.episode, review.reviewer] = review
        write_reviews(self.folder.path, list(self.known.values()))

    def reviews(self) -> list[NeeReview]:
        """Return this panel's reviews of this run's episodes."""
        members = {member.id for member in self.panel}
        return [r for r in self.known.values() if r.reviewer in members and self.talks.get(r.episode) == r.talk]


async def _work(jobs: Sequence[_Job], tell: Tell) -> None:
    asked = [(job, episode, member) for job in jobs for episode, member in job.open()]
    profiles = [profiles_of(scenario_of(e.header, job.folder.scenarios))[1] for job, e, _ in asked]
    gate, done, failed = asyncio.Semaphore(AT_ONCE), 0, 0
    tell(Progress(done, len(asked), failed))

    async def one(k: int) -> None:
        nonlocal done, failed
        job, episode, member = asked[k]
        async with gate:
            review = await review_of(episode, member, profiles[k])
        job.keep(review)
        done, failed = done + 1, failed + bool(review.failure)
        tell(Progress(done, len(asked), failed))

    if waits(*(member for _, _, member in asked)):
        await asyncio.gather(*map(one, range(len(asked))))
    else:
        for k in range(len(asked)):
            await one(k)


async def review_of(episode: Episode, member: Reviewer, profile: JudgeProfile) -> NeeReview:
    """Return a reviewer's review; one that failed says why, and has no marks."""
    ids = {"episode": episode.header.episode_id, "talk": talk_digest(episode), "reviewer": member.id}
    try:
        found = await member.review(episode, profile)
    except ConfigError:
        raise  # the user's to mend: every review would fail alike
    except Exception as e:  # any fault of a reviewer is recorded as a missing review
        return NeeReview(**ids, failure=fault_of("nee", e))
    return NeeReview(
        **ids, **found.marks._asdict(), diagnosis=found.diagnosis, comment=found.comment, usage=found.usage
    )


def _recorded(jobs: Sequence[_Job]) -> str:
    found = sorted({e.header.scorer for job in jobs for e in job.episodes if e.header.domain != CHITCHAT})
    if len(found) > 1:
        raise ConfigError(
            f"the episodes were recorded with several scorers: {', '.join(found)}", "name one with --scorer"
        )
    return found[0] if found else "strict"


def _model(job: _Job, rules: Scorer) -> NeeModel:
    name = job.folder.path.resolve().name
    cases = [episode_case(name, e, rules, "epm") for e in job.episodes if e.header.domain != CHITCHAT]
    summaries = leaderboard([case.score for case in cases if case.score is not None], draws=0)
    composite = summaries[0].composite if summaries else None
    return sum_up(
        name,
        [member.id for member in job.panel],
        job.reviews(),
        episodes=len(job.episodes),
        unfinished=job.unfinished,
        epm_q=composite.epm_q if composite else None,
    )
