"""Director, actor, judge and reference policies of the embedded world: code and small shipped weights."""

from echo_env.agents.embedded.actor import EmbeddedActor
from echo_env.agents.embedded.director import EmbeddedDirector
from echo_env.agents.embedded.judge import EmbeddedJudge
from echo_env.roles import Cast


def cast(seed: int) -> Cast:
    """Return the three embedded roles for one conversation."""
    from echo_env.agents.gated import GatedJudge  # here, since the gate reads with this package

    return Cast(EmbeddedActor(seed), EmbeddedDirector(), GatedJudge(EmbeddedJudge()))


__all__ = ["EmbeddedActor", "EmbeddedDirector", "EmbeddedJudge", "cast"]
