"""A model and a tokenizer made from nothing: any text comes back, the folder is an ordinary one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from sftfiles import SHAPE, TALKS, talk  # noqa: E402

from echo_env.agents.loading import load_model, stop_tokens  # noqa: E402
from echo_env.agents.policy import local_model  # noqa: E402
from echo_env.errors import ConfigError  # noqa: E402
from echo_env.roles import Observation  # noqa: E402
from echo_env.trainers.chat import ChatFormat  # noqa: E402
from echo_env.trainers.scratch import Shape, make, make_model, make_tokenizer  # noqa: E402

TOKENIZER = make_tokenizer([text for texts in TALKS for text in texts], 400, 512)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
@settings(deadline=None)
def test_any_text_comes_back(text):
    if "<|im_" not in text:
        ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
        assert TOKENIZER.decode(ids) == text


@pytest.mark.parametrize("text", ["我很難過。", "🙂‍↔️ fine 👍🏽", "naïve — “quoted”", "don't .  Stop !", "a\n\n b\t"])
def test_emoji_chinese_and_spaces_come_back(text):
    assert TOKENIZER.decode(TOKENIZER(text, add_special_tokens=False)["input_ids"]) == text


def test_a_message_costs_two_tokens_beside_its_words():
    chat = [{"role": "user", "content": "I lost the key."}, {"role": "assistant", "content": "Which key?"}]
    text = TOKENIZER.apply_chat_template(chat, tokenize=False)
    assert text == "<|im_start|>user\nI lost the key.<|im_end|><|im_start|>assistant\nWhich key?<|im_end|>"
    words = sum(len(TOKENIZER(m["content"], add_special_tokens=False)["input_ids"]) for m in chat)
    assert len(TOKENIZER(text, add_special_tokens=False)["input_ids"]) == words + 4


@pytest.mark.parametrize("quote", ["'", '"', "(", "\u2018", "\u201c"])
def test_a_quoted_word_is_the_token_that_it_is_elsewhere(quote):
    tokenizer = make_tokenizer([f"the kettle and {quote}kettle here"] * 20, 400, 512)
    [kettle] = tokenizer(" kettle").input_ids
    assert tokenizer(f"see {quote}kettle").input_ids[-1] == kettle
    for text in (f"see {quote}kettle", f"{quote}kettle", f"don{quote}t {quote} kettle"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_the_template_may_be_grown():
    model = make_model(SHAPE, TOKENIZER, 0)
    ChatFormat(TOKENIZER, stops=stop_tokens(model, TOKENIZER), system="").check_append()


def test_the_seed_decides_the_weights_and_nothing_else_is_drawn():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, same, other = (make_model(SHAPE, TOKENIZER, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    weights = [m.model.layers[0].mlp.up_proj.weight for m in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_vocabulary_is_as_large_as_asked_and_tied():
    assert len(TOKENIZER) <= 400
    model = make_model(SHAPE, TOKENIZER, 0)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_heads_that_do_not_fit_are_told():
    with pytest.raises(ConfigError, match="5 heads"):
        make_model(Shape(hidden=32, heads=5), TOKENIZER, 0)


def test_the_folder_is_an_ordinary_one(tmp_path):
    tokenizer, model = make(SHAPE, [text for texts in TALKS for text in texts], 0)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, loaded = load_model(tmp_path, "cpu", None)
    text = "你好 🙂 I lost the key."
    assert again(text, add_special_tokens=False)["input_ids"] == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert again.decode(again(text, add_special_tokens=False)["input_ids"]) == text
    assert again.chat_template == tokenizer.chat_template
    ids = torch.tensor([again("I lost the key.")["input_ids"]])
    assert torch.equal(loaded(input_ids=ids).logits, model.eval()(input_ids=ids).logits)
    assert stop_tokens(loaded, again) == {again.eos_token_id}
    policy = local_model(tmp_path, system="", max_new_tokens=4)
    observation = Observation(messages=talk("I lost the key."))
    assert isinstance(policy.respond_batch([observation], [0])[0], str)
