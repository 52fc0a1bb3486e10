"""The one network client: every role that a language model plays asks through it (docs/models.md)."""

from echo_env.agents.llm.asks import Answer, Ask, ChatMessage, LlmFailure, Tool
from echo_env.agents.llm.client import LlmClient, client_of
from echo_env.agents.llm.config import ModelConfig, ModelsConfig, models_config
from echo_env.agents.llm.prompting import Prompt, prompt

__all__ = [
    "Answer", "Ask", "ChatMessage", "LlmClient", "LlmFailure", "ModelConfig", "ModelsConfig", "Prompt", "Tool",
    "client_of", "models_config", "prompt",
]  # fmt: skip
