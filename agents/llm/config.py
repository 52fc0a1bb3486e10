"""Which model plays which role, and under what limits: the models file that stands behind `llm:`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, ValidationError, field_validator

from echo_env.errors import ConfigError, ScenarioError
from echo_env.types import Record
from echo_env.yamlfiles import read_yaml

_VARIABLE = re.compile(r"(?!AKIA[0-9A-Z]{16}$)[A-Z][A-Z0-9_]{0,63}")
_SECRET = re.compile(r"key|token|secret|password|credential|authorization", re.IGNORECASE)
_MODES = ("auto", "record", "replay", "off")


class ModelConfig(Record):
    """One model as one role uses it."""

    model_config = ConfigDict(hide_input_in_errors=True, protected_namespaces=())

    model: str = Field(min_length=1)
    """LiteLLM's name: "hosted_vllm/NAME", "openai/NAME", "ollama/NAME", "gpt-5" ..."""
    api_base: str | None = None
    """URL of an own server, without a user name, a password or a query."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; never a key. With `api_base` and no name, no key is sent."""
    temperature: float = Field(0.7, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(512, ge=1)
    timeout: float = Field(60.0, gt=0)
    """Seconds a try."""
    retries: int = Field(4, ge=0)
    """Further tries after a rate limit, a server's error, a lost connection or a timeout."""
    concurrency: int = Field(16, ge=1)
    """Calls in flight, per model and server over the whole process."""
    requests_per_minute: int | None = Field(None, ge=1)
    tokens_per_minute: int | None = Field(None, ge=1)
    structured: Literal["json_schema", "tool", "prompt"] = "json_schema"
    """How an answer of a given form is asked for: by the server's JSON schema, by a tool call, or in words."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Passed on to LiteLLM verbatim."""

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is not None and not _VARIABLE.fullmatch(value):
            raise ValueError("give the name of an environment variable, OPENAI_API_KEY for example, never a key")
        return value

    @field_validator("api_base")
    @classmethod
    def _is_a_plain_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        url = urlsplit(value)
        if url.scheme not in ("http", "https") or not url.netloc or "@" in url.netloc or url.query:
            raise ValueError("give a URL without user, password or query: http://127.0.0.1:8000/v1 for example")
        return value.rstrip("/")

    @field_validator("extra")
    @classmethod
    def _holds_no_secret(cls, value: dict[str, Any]) -> dict[str, Any]:
        if any(_SECRET.search(name) for name in _texts_of(value)):
            raise ValueError("keys come from the environment: name the variable in api_key_env")
        return value


def _texts_of(value: object, name: str = "") -> list[str]:
    """Return the names under which a nested value holds texts."""
    if isinstance(value, Mapping):
        return [found for key, inner in value.items() for found in _texts_of(inner, str(key))]
    if isinstance(value, list | tuple):
        return [found for inner in value for found in _texts_of(inner, name)]
    return [name] if isinstance(value, str) else []


class CacheConfig(Record):
    """Where answers are kept, and whether they are used."""

    mode: Literal["auto", "record", "replay", "off"] = "auto"
    """`auto` uses what is there and asks for the rest; `record` always asks; `replay` never; `off` keeps nothing."""
    folder: Path | None = None
    """None is the user's cache: `$ECHO_ENV_CACHE`, else `~/.cache/echo-env`, and in it `verdicts`."""

    @field_validator("mode", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        return "off" if value is False else value  # what YAML makes of an unquoted `off`

    def place(self) -> Path:
        """Return the folder."""
        root = Path(os.environ.get("ECHO_ENV_CACHE") or Path.home() / ".cache" / "echo-env")
        return self.folder or root / "verdicts"


class ModelsConfig(Record):
    """A models file."""

    default: ModelConfig
    roles: dict[str, ModelConfig] = Field(default_factory=dict)
    """By role: actor, director, judge, humanlike, empathy, policy ... In YAML only what differs from `default`."""
    panel: tuple[ModelConfig, ...] = ()
    """The judges of a panel (NEE); in YAML only what differs from `default`."""
    cache: CacheConfig = Field(default_factory=CacheConfig)

    def of(self, role: str) -> ModelConfig:
        """Return the model that plays a role."""
        return self.roles.get(role, self.default)


def models_config(name: str) -> ModelsConfig:
    """Return what stands behind `llm:`.

    Args:
        name: Path of a models file (.yaml, .yml), or a LiteLLM model name, or "MODEL@URL" for an own server.

    Raises:
        ConfigError: There is no such file, or it does not hold what it must.
    """
    name = name.removeprefix("llm:")
    if name.endswith((".yaml", ".yml")):
        path = Path(name).expanduser()
        try:
            data = read_yaml(path)
        except ScenarioError as e:
            raise ConfigError(e.message, e.hint) from None
        if not isinstance(data, dict) or not isinstance(data.get("default"), dict):
            raise ConfigError(f"{path}: a models file starts with its default model", "default: {model: gpt-5}")
        filled = _filled(data)
        folder = filled.get("cache", {}).get("folder") if isinstance(filled.get("cache"), dict) else None
        if isinstance(folder, str):
            filled["cache"] = {**filled["cache"], "folder": path.parent / Path(folder).expanduser()}
        return _validated(filled, str(path))
    model, _, url = name.partition("@http")
    return _validated({"default": {"model": model, "api_base": f"http{url}" if url else None}}, f"model '{model}'")


def _filled(data: dict[str, Any]) -> dict[str, Any]:
    """Return a models file whose roles and panel say everything."""
    default, roles, panel = data["default"], data.get("roles") or {}, data.get("panel") or []
    filled = {**data}
    if isinstance(roles, dict):
        filled["roles"] = {k: {**default, **v} if isinstance(v, dict) else v for k, v in roles.items()}
    if isinstance(panel, list):
        filled["panel"] = [{**default, **v} if isinstance(v, dict) else v for v in panel]
    return filled


def _validated(data: dict[str, Any], where: str) -> ModelsConfig:
    try:
        return ModelsConfig.model_validate(data)
    except ValidationError as e:
        # never the input itself: somebody may have put a key where its name belongs
        faults = [f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in e.errors(include_input=False)]
    raise ConfigError(
        f"{where}: " + "; ".join(faults),
        "docs/models.md lists the fields; keys come from the environment, api_key_env names the variable",
    )
