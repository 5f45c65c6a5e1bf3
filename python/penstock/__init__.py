"""Penstock runs Mixture-of-Experts language models that do not fit into memory. docs/python.md has examples."""
from penstock._base import plan, set_log_level
from penstock._penstock import version as _version
from penstock.async_llm import AsyncLLM
from penstock.errors import (
    InputError,
    InternalError,
    IoError,
    ModelError,
    PenstockError,
    ResourceError,
    StoppedError,
    UsageError,
)
from penstock.llm import LLM
from penstock.outputs import (
    ChatAnswer,
    ChoiceScore,
    CompletionOutput,
    Logprob,
    RequestOutput,
    StreamPiece,
    ToolCall,
)
from penstock.routing import Routing, read_routing
from penstock.sampling import SamplingParams

__version__ = _version()
__all__ = [
    "LLM", "AsyncLLM", "ChatAnswer", "ChoiceScore", "CompletionOutput", "InputError", "InternalError", "IoError",
    "Logprob", "ModelError", "PenstockError", "RequestOutput", "ResourceError", "Routing", "SamplingParams",
    "StoppedError", "StreamPiece", "ToolCall", "UsageError", "plan", "read_routing", "set_log_level",
]
