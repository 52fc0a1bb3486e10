"""The models file: what a role takes over, what is refused, and that a refusal never repeats a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo_env.agents.llm.config import ModelConfig, models_config
from echo_env.errors import ConfigError

KEY = "sk-proj-0123456789abcdefABCDEF"
FILE = """
default: {model: hosted_vllm/big, api_base: "http://127.0.0.1:8000/v1/", temperature: 0.5}
roles:
  judge: {temperature: 0.0, structured: tool}
  policy: {model: gpt-5, api_base: null, api_key_env: OPENAI_API_KEY}
panel: [{model: hosted_vllm/one}, {model: hosted_vllm/two, max_tokens: 100}]
cache: {mode: replay, folder: cassette}
"""


def test_a_role_says_only_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(FILE)
    models = models_config(str(path))
    assert models.of("actor") == models.default == ModelConfig(
        model="hosted_vllm/big", api_base="http://127.0.0.1:8000/v1", temperature=0.5
    )  # fmt: skip
    judge = models.of("judge")
    assert (judge.model, judge.temperature, judge.structured) == ("hosted_vllm/big", 0.0, "tool")
    assert models.of("policy").api_base is None
    assert [m.model for m in models.panel] == ["hosted_vllm/one", "hosted_vllm/two"]
    assert models.panel[1].temperature == 0.5
    assert models.cache.folder == tmp_path / "cassette"


@pytest.mark.parametrize(
    ("name", "model", "base"),
    [
        ("gpt-5", "gpt-5", None),
        ("hosted_vllm/qwen@http://127.0.0.1:8000/v1", "hosted_vllm/qwen", "http://127.0.0.1:8000/v1"),
        ("openai/a@b@https://example.org/v1/", "openai/a@b", "https://example.org/v1"),
    ],
)
def test_a_name_is_enough(name: str, model: str, base: str | None) -> None:
    default = models_config(name).default
    assert (default.model, default.api_base) == (model, base)


SECRETS = [
    f"default: {{model: m, api_key_env: {KEY}}}",
    "default: {model: m, api_key_env: AKIA0123456789ABCDEF}",
    f"default: {{model: m, extra: {{api_key: {KEY}}}}}",
    f"default: {{model: m, extra: {{extra_headers: {{Authorization: Bearer {KEY}}}}}}}",
    f'default: {{model: m, api_base: "http://me:{KEY}@127.0.0.1/v1"}}',
    f'default: {{model: m, api_base: "http://127.0.0.1/v1?key={KEY}"}}',
    f"default: {{model: m, api_key: {KEY}}}",
    f"default: {{model: m}}\nroles: {{judge: {{api_key_env: {KEY}}}}}",
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_key_has_no_place_in_it_and_is_not_repeated(text: str, tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        models_config(str(path))
    assert KEY not in str(caught.value)
    assert "AKIA" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "text", ["", "[]", "default: gpt-5", "roles: {}", "default: {model: ''}", "default: {model: m, tempo: 1}", "a: [",
             "default: {model: m, concurrency: 0}", "default: {model: m}\nroles: [judge]",
             "default: {model: m}\npanel: {a: 1}"],
)  # fmt: skip
def test_a_file_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "models.yml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"models\.yml"):
        models_config(str(path))


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no-such\.yaml: there is no such file"):
        models_config("no-such.yaml")
