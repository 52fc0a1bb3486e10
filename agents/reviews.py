"""Reviews of whole talks (NEE, Echo-N1 section 5.3.4) as records, on disk beside the run, and summed up.

A review that failed has no marks. It enters no mean, is counted, and is asked for again by the next call.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal, NamedTuple, Protocol

from pydantic import Field, ValidationError

from echo_env.errors import RecordError
from echo_env.metrics import final_score, nee_total
from echo_env.roles import JudgeProfile
from echo_env.types import Episode, Record, Text, Usage

FILE = "nee.json"
"""Name of the file beside a run's episodes."""


class Marks(NamedTuple):
    """The three parts of the NEE score."""

    naturalness: float
    """0..30."""
    pacing: float
    """0..40."""
    narrative: float
    """0..30."""

    @property
    def total(self) -> float:
        """0..100."""
        return nee_total(*self)


@dataclass(frozen=True, slots=True)
class Reviewed:
    """What a reviewer made of a talk."""

    diagnosis: str
    """What the person needed; found before any mark was given."""
    marks: Marks
    comment: str = ""
    usage: Usage | None = None


class Reviewer(Protocol):
    """A member of a panel. One that waits for a remote model says `waits = True`."""

    id: str
    """Name and version; what can move a mark raises the version."""

    async def review(self, episode: Episode, profile: JudgeProfile) -> Reviewed:
        """Review a finished conversation.

        Raises:
            RoleFailure: There is no review to be had.
        """
        ...


class NeeReview(Record):
    """One reviewer's review of one episode."""

    episode: str
    talk: str
    """Checksum of what was said, so that another talk under the same id is reviewed anew."""
    reviewer: str
    diagnosis: Text = ""
    naturalness: float | None = Field(None, ge=0, le=30)
    """None, as the other marks, where the review failed."""
    pacing: float | None = Field(None, ge=0, le=40)
    narrative: float | None = Field(None, ge=0, le=30)
    comment: Text = ""
    usage: Usage | None = None
    failure: Text = ""

    @property
    def marks(self) -> Marks | None:
        """The marks; None where the review failed."""
        if self.naturalness is None or self.pacing is None or self.narrative is None:
            return None
        return Marks(self.naturalness, self.pacing, self.narrative)


class NeeFile(Record):
    """All reviews of one run's episodes, by whatever panel."""

    version: Literal[1] = 1
    reviews: tuple[NeeReview, ...] = ()


def talk_digest(episode: Episode) -> str:
    """Return the first 16 hex digits of the SHA-256 of what was said."""
    said = [text for t in episode.turns for text in (t.user, t.reply)]
    return hashlib.sha256("\0".join([*said, episode.outcome.closing if episode.outcome else ""]).encode()).hexdigest()[
        :16
    ]


def read_reviews(folder: Path) -> tuple[NeeReview, ...]:
    """Return the reviews that stand beside a run.

    Raises:
        RecordError: The file there is none of reviews.
    """
    path = folder / FILE
    try:
        return NeeFile.model_validate_json(path.read_text(encoding="utf-8")).reviews
    except FileNotFoundError:
        return ()
    except OSError as e:
        raise RecordError(f"{path} cannot be read: {e.strerror or e}") from None
    except ValidationError as e:
        raise RecordError(f"{path} holds no reviews: {e.errors()[0]['msg']}", "move it away to review anew") from None


def write_reviews(folder: Path, reviews: Sequence[NeeReview]) -> None:
    """Write all reviews of a run, sorted; whole or not at all.

    Raises:
        RecordError: The disk does not take them.
    """
    kept = sorted(reviews, key=lambda r: (r.episode, r.reviewer))
    path, part = folder / FILE, folder / f"{FILE}.{os.getpid()}.part"
    try:
        part.write_text(NeeFile(reviews=tuple(kept)).model_dump_json(indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as e:
        raise RecordError(f"{path} cannot be written: {e.strerror or e}") from None


class ReviewerRow(Record):
    """One reviewer on one model."""

    reviewer: str
    reviews: int
    failures: int
    naturalness: float | None
    """Mean over the reviewed episodes; None, as the others, where there is none."""
    pacing: float | None
    narrative: float | None
    nee: float | None
    std_over_episodes: float | None
    """Sample standard deviation of the score; None under two episodes."""


class NeeModel(Record):
    """One model under a panel."""

    model: str
    episodes: int
    """Finished episodes."""
    unfinished: int
    reviewers: tuple[ReviewerRow, ...]
    failures: int
    """Reviews that failed; they are in no mean."""
    naturalness: float | None
    """Mean over reviewers of each one's mean, as for the other parts and the score."""
    pacing: float | None
    narrative: float | None
    nee: float | None
    std_over_models: float | None
    """Sample standard deviation over reviewers of each one's mean; None under two."""
    std_over_episodes: float | None
    """Sample standard deviation over episodes of the panel's mean on each; None under two."""
    epm_q: float | None
    final: float | None
    """0.6 EPM-Q + 0.4 NEE (Echo-N1 eq. 9); None where either is missing."""


class NeeResult(Record):
    """What a panel made of several models."""

    panel: tuple[str, ...]
    scorer: str
    """Id of the scorer behind EPM-Q. The paper's is `official`."""
    models: tuple[NeeModel, ...]


def sum_up(
    model: str,
    panel: Sequence[str],
    reviews: Sequence[NeeReview],
    *,
    episodes: int,
    unfinished: int = 0,
    epm_q: float | None = None,
) -> NeeModel:
    """Sum up a model's reviews by a panel.

    Args:
        model: Its name.
        panel: Ids of the reviewers.
        reviews: Of its episodes, by these reviewers.
        episodes: Finished episodes.
        unfinished: Others, which nobody reviews.
        epm_q: Its EPM-Q.
    """
    rows = tuple(_row(member, [r for r in reviews if r.reviewer == member]) for member in panel)
    scores = [row.nee for row in rows if row.nee is not None]
    by_episode: dict[str, list[float]] = {}
    for review in reviews:
        if review.marks is not None:
            by_episode.setdefault(review.episode, []).append(review.marks.total)
    nee = _mean(scores)
    return NeeModel(
        model=model,
        episodes=episodes,
        unfinished=unfinished,
        reviewers=rows,
        failures=sum(row.failures for row in rows),
        naturalness=_mean([row.naturalness for row in rows]),
        pacing=_mean([row.pacing for row in rows]),
        narrative=_mean([row.narrative for row in rows]),
        nee=nee,
        std_over_models=_std(scores),
        std_over_episodes=_std([fmean(totals) for totals in by_episode.values()]),
        epm_q=epm_q,
        final=None if nee is None or epm_q is None else final_score(epm_q, nee),
    )


def _row(reviewer: str, reviews: Sequence[NeeReview]) -> ReviewerRow:
    marks = [r.marks for r in reviews if r.marks is not None]
    return ReviewerRow(
        reviewer=reviewer,
        reviews=len(marks),
        failures=len(reviews) - len(marks),
        naturalness=_mean([m.naturalness for m in marks]),
        pacing=_mean([m.pacing for m in marks]),
        narrative=_mean([m.narrative for m in marks]),
        nee=_mean([m.total for m in marks]),
        std_over_episodes=_std([m.total for m in marks]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def _std(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None
