"""A judge that does not read acts: the baseline for whatever is said about judges that do."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from echo_env.agents.embedded.anchors import Reader, reader, rubric_for
from echo_env.agents.embedded.encoders import encoder_for
from echo_env.agents.embedded.judge import EmbeddedJudge

NEVER = 1e9
"""A score that nothing reaches."""


class DeafJudge(EmbeddedJudge):
    """The first judge with all acts taken from it: what is left is what was told and met, feelings named, and form.

    Two judges that agree no better than each agrees with this one agree on bookkeeping alone.
    """

    id = "deaf-1"

    def _reader(self, language: str) -> Reader:
        return _deaf(self.rubric, language)


@lru_cache(maxsize=4)
def _deaf(rubric: str, language: str) -> Reader:
    """Return a reader to which no sentence shows any act."""
    found = reader(rubric_for(rubric, language), encoder_for(language))
    return replace(
        found,
        thresholds=tuple(NEVER for _ in found.acts),
        harm_least=NEVER,
        scale=replace(found.scale, cued_least=NEVER),
    )
