"""How text is read: word lists, feelings that are voiced or denied, where sentences end."""

import pytest
from lighthouse import verdict

from echo_env.agents.embedded.language import lexicon, split_sentences, voiced_feelings
from echo_env.types import Levels


def test_the_word_lists_hold_words() -> None:
    lex = lexicon("en")
    for found in (lex.negators, lex.vague, lex.stopwords, lex.feeling_of, lex.relation_of, lex.mirror):
        assert [word for word in found if not isinstance(word, str)] == []
    assert "no" in lex.negators


def test_no_shame_is_no_shame() -> None:
    assert voiced_feelings("I feel no shame about the letter.") == frozenset()


def test_no_wonder_denies_nothing() -> None:
    """To hold when 'no' has become a negator."""
    judgement = verdict(("beat1.0", "No wonder you're ashamed of that letter."))
    assert judgement.levels == Levels(a_prog=2)


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("I left. He stayed.", 2),
        ("Why? Because.", 2),
        ("Well... I left.", 2),
        ('He said: "Go!" I went.', 2),
        pytest.param(
            "It cost 2.50 at three a.m. in there.",
            1,
        ),
        pytest.param(
            "I told Dr. Lee about Mrs. Abate.",
            1,
        ),
    ],
)
def test_sentences_end_at_their_ends(text: str, n: int) -> None:
    assert len(split_sentences(text)) == n
