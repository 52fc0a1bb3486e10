"""The embedded member of a NEE panel: a modest stand-in that reads style by cues and a talk's course by its record.

It understands nothing of what it reviews, and its pacing and narrative lean on the recorded EPM course, so that it
agrees with EPM-Q by construction (docs/validity.md has the figure). It is there so that the whole path runs offline.

- naturalness: how little the replies repeat one another or the person, whether they are of a size with the person's
  messages, how few of them hold stock phrases, lists or shouting; a third each, times the share that say something;
- pacing: how much more often a turn leads on than back, and how often what was told is met on its own axis; half each;
- narrative: how much of the story came out, how often things were tied together, how far the person came; a third each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median

from echo_env.agents.actor import ASSISTANT
from echo_env.agents.reviews import Marks, Reviewed
from echo_env.agents.transcript import shared_runs, tokens, told
from echo_env.epm import norm
from echo_env.errors import RoleFailure
from echo_env.metrics import NEE_TOPS
from echo_env.roles import JudgeProfile
from echo_env.types import Axis, Episode, Turn

LONGEST = 2.5
"""A reply's words beside those of the person's messages, up to which it is of a size with them."""
ENDLESS = 8.0
"""The same from which it is a speech."""
STORY = 0.6
"""Share of a story's lines that a talk brings out where it brings out enough."""
TIED_EVERY = 5
"""Turns within which something is tied together where enough is."""
_STOCK = re.compile(
    r"^\s*(?:[-*\u2022]|\d+[.)\u3001])\s|!!|\uff01\uff01|#\w|\*\*|[\U0001f300-\U0001faff]"
    r"|\bthat must be (?:so |very )?(?:hard|difficult)\b|\byour feelings are valid\b|\bthank you for sharing\b",
    re.MULTILINE | re.IGNORECASE,
)
_TIES = (".connects", ".deepens")
_AXIS_OF: dict[str, Axis] = {"fact": "C", "belief": "C", "feeling": "A", "strength": "P", "wish": "P"}


class EmbeddedReviewer:
    """Reviews talks by stated rules. No judge of anything; a stand-in."""

    id = "embedded-nee-1"
    waits = False

    async def review(self, episode: Episode, profile: JudgeProfile) -> Reviewed:
        """Return marks for a finished conversation.

        Raises:
            RoleFailure: No turn of it was judged.
        """
        turns = episode.turns
        judged = [t for t in turns if t.judgement is not None and t.epm is not None]
        if not judged:
            raise RoleFailure("no turn of this conversation was judged")
        shares = (naturalness(turns), pacing(judged, profile), narrative(episode, judged, profile))
        marks = Marks(*(round(top * share, 2) for top, share in zip(NEE_TOPS, shares, strict=True)))
        needs = "; ".join(f"{n.axis}: {n.wants}" for n in profile.needs)
        return Reviewed(f"Needs by rank, from the profile: {needs or 'none, a chat'}.", marks)


def naturalness(turns: Sequence[Turn]) -> float:
    """Return how natural the replies sound by their form alone, 0..1."""
    spoken = [t for t in turns if tokens(t.reply)]
    if not spoken:
        return 0.0
    replies = [t.reply for t in spoken]
    again = [max(shared_runs(t.reply, old) for old in [t.user, *replies[:k]]) for k, t in enumerate(spoken)]
    theirs = median(max(1, len(tokens(t.user))) for t in turns)
    size = median(len(tokens(r)) for r in replies) / theirs
    fit = 1.0 if size <= LONGEST else max(0.0, (ENDLESS - size) / (ENDLESS - LONGEST))
    stock = sum(bool(_STOCK.search(r) or ASSISTANT.search(r)) for r in replies) / len(replies)
    fresh = 1.0 - sum(again) / len(again)
    return (fresh + fit + 1.0 - stock) / 3 * len(replies) / len(turns)


def pacing(judged: Sequence[Turn], profile: JudgeProfile) -> float:
    """Return how well act and moment went together, 0..1."""
    works = [t.epm.work for t in judged if t.epm is not None]
    course = max(0.0, (sum(w > 0 for w in works) - sum(w < 0 for w in works)) / len(works))
    lines, met = dict(profile.lines), []
    for turn in judged:
        axes = {_AXIS_OF[lines[i].kind] for i in told(profile.lines, [turn.user])}
        if axes and turn.judgement is not None:
            met.append(bool(axes & {e.axis for e in turn.judgement.evidence if e.direction == "prog"}))
    return (course + sum(met) / len(met)) / 2 if met else course


def narrative(episode: Episode, judged: Sequence[Turn], profile: JudgeProfile) -> float:
    """Return how far the talk became a story, 0..1."""
    out = told(profile.lines, [t.user for t in episode.turns])
    breadth = min(1.0, len(out) / (STORY * len(profile.lines)))
    tied = sum(any(e.anchor.endswith(_TIES) for e in t.judgement.evidence) for t in judged if t.judgement)
    ties = min(1.0, tied * TIED_EVERY / len(episode.turns))
    start, last = norm(episode.header.p0), judged[-1].epm
    way = min(1.0, max(0.0, 1.0 - last.distance / start)) if last is not None and start else 0.0
    if episode.outcome is not None and episode.outcome.end == "success":
        way = 1.0
    return (breadth + ties + way) / 3
