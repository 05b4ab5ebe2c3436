"""Chat messages to the text that a model was trained on, by the model's own Jinja template.

Templates come with weights, so they are other people's programs: they run in Jinja's sandbox and
see the messages and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from moonpool.core.errors import BadInput, missing_extra


class ChatTemplate:
    """One model's template. `names` are texts it may use, such as bos_token."""

    def __init__(self, source: str, names: Mapping[str, str]) -> None:
        self.source = source
        self._names = dict(names)

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The prompt. Raises BadInput when the template refuses the messages."""
        import jinja2

        try:
            text: str = self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                **self._names,
                **options,
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise BadInput(f"the model's chat template refuses these messages: {error}") from None
        return text

    @cached_property
    def _template(self) -> Any:
        try:
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise missing_extra("a chat template", "engine") from None
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        return environment.from_string(self.source)


def _to_json(value: Any, indent: int | None = None) -> str:
    """As models were trained on it: no escaped HTML, which Jinja's own filter would write."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)
